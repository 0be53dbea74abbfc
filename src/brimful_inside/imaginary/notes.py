"""All that the imaginary GPU notes beside the allocations (laws/annotations.py), put in place and taken away together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from brimful_inside.imaginary.module_calls import ModuleCalls
from brimful_inside.imaginary.patches import Patches
from brimful_inside.imaginary.sites import Sites
from brimful_inside.imaginary.tags import Tags
from brimful_inside.laws.annotations import Uses

if TYPE_CHECKING:
    from brimful_inside.imaginary.gpu import ImaginaryGpu

__all__ = ["Notes"]

_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)


class Notes:
    """Who asks for memory (`sites`) and what it becomes (`tags`)."""

    def __init__(self, gpu: ImaginaryGpu) -> None:
        self._gpu = gpu
        self._used: set = set()
        self.calls = ModuleCalls()
        self.sites = Sites(self.calls)
        self.tags = Tags(lambda: gpu.ledgers, self.calls)

    def put_in_place(self, patches: Patches) -> None:
        self.sites.put_in_place(patches)
        self.tags.put_in_place()
        for ledger in self._gpu.ledgers:
            ledger.sites = self.sites

    def leave(self) -> None:
        self.sites.leave()
        self.tags.leave()

    def made(self, tensor: Any, func: Any) -> None:
        """`tensor` was made by `func`, which may have read it from the host."""
        if func in _FROM_DATA:
            self.tags.copied(tensor)

    def copied(self, tensor: Any) -> None:
        """`tensor` was filled from the host."""
        self.tags.copied(tensor)

    def uses(self, name: str) -> None:
        """The script uses `name`; told once."""
        if name not in self._used:
            self._used.add(name)
            for ledger in self._gpu.ledgers:
                ledger.note(Uses(name))
