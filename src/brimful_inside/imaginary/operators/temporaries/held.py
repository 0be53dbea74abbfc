"""What a kernel holds while it runs, in the words of the table of temporaries."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple, Union

import torch

from brimful_inside.simulator.workspaces import torch_release
from brimful_inside.wire import Card

__all__ = ["Held", "Kernel", "Law", "Machine", "Passing", "bytes_of_tensor", "copies"]

Tensor = torch.Tensor


class Machine(NamedTuple):
    """What a kernel's temporaries depend on beside its arguments."""

    capability: Tuple[int, int]
    multiprocessors: int
    release: int  # of PyTorch: 2.13 is 213

    @classmethod
    def of(cls, card: Card) -> Machine:
        capability = (card.capability[0], card.capability[1])
        return cls(capability, card.multiprocessors, torch_release(torch.__version__))

    @property
    def threads(self) -> int:
        """Resident threads of a multiprocessor (CUDA's programming guide, technical specifications per capability)."""
        major, minor = self.capability
        if (major, minor) == (7, 5):
            return 1024
        return 1536 if (major == 8 and minor) or major == 12 else 2048


class Law(NamedTuple):
    """A temporary that a workspace law gives; it is in the trace even where the law says 0."""

    name: str
    args: Tuple[int, ...]


class Passing(NamedTuple):
    """Temporaries that are there together, and gone before the results are made."""

    items: Sequence[Union[int, Law]]


Held = Union[int, Law, Passing]
Kernel = Callable[[Machine, Sequence[Any], Dict[str, Any]], Sequence[Held]]


def bytes_of_tensor(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def copies(*tensors: Tensor) -> List[Held]:
    """``tensor.contiguous()``: once more, those that are laid out in another way."""
    return [bytes_of_tensor(tensor) for tensor in tensors if not tensor.is_contiguous()]
