"""Below autograd, with several cards: an operation runs where its inputs are, and tensors of two cards do not meet in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple

import torch

from brimful_inside.imaginary.dispatch.dispatch_mode import Operations
from brimful_inside.imaginary.state.errors import different_devices
from brimful_inside.imaginary.state.tensors import is_meta

if TYPE_CHECKING:
    from brimful_inside.imaginary.several.gpus import ImaginaryGpus

__all__ = ["OperationsOnCards", "tensors_in"]

Tensor = torch.Tensor


def tensors_in(args: Tuple, kwargs: Dict[str, Any]) -> Iterator[Tensor]:
    """The tensors among an operation's arguments, those in lists too."""
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, (list, tuple)):
            for item in arg:
                if isinstance(item, Tensor):
                    yield item


class OperationsOnCards(Operations):
    """Finds the card of each operation. One instance a thread."""

    gpu: ImaginaryGpus

    def _run(self, func: Any, facts: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        places = self.gpu.places
        index = self._card(facts, args, kwargs)
        before, places.named = places.named, index
        try:
            return super()._run(func, facts, args, kwargs)
        finally:
            places.named, places.last = before, index

    def _card(self, facts: Any, args: Tuple, kwargs: Dict[str, Any]) -> int:
        """The card that the operation runs on and whose memory its results take. Raises RuntimeError where two meet."""
        places = self.gpu.places
        if places.named is not None and kwargs.get("device") is not None:
            return places.named
        found: Optional[int] = None
        free = facts.mixes or facts.short.startswith(("_foreach", "_fused"))
        for tensor in tensors_in(args, kwargs):
            if not is_meta(tensor):
                continue
            index = self.gpu.index_of_tensor(tensor)
            if index is None or index == found:
                continue
            if found is None:
                found = index
            elif not free:
                name = "argument of aten::%s" % facts.short
                raise different_devices(name, "cuda:%d" % found, "cuda:%d" % index)
            if free:
                break
        if found is not None:
            return found
        if places.named is not None:
            return places.named
        return places.current if places.last is None else places.last
