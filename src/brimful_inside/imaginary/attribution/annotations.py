"""All that the imaginary GPU notes beside the allocations (simulator/trace.py), put in place and taken away together."""

from __future__ import annotations

from typing import Any, List, Optional

import torch

from brimful_inside.imaginary.attribution.call_sites import Sites
from brimful_inside.imaginary.attribution.categories import Tags
from brimful_inside.imaginary.attribution.modules import ModuleCalls
from brimful_inside.imaginary.attribution.what_if import WHAT_IFS, patch_what_if
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.simulator.trace import Uses

__all__ = ["Notes"]

_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)


class Notes:
    """Who asks for memory (`sites`) and what it becomes (`tags`)."""

    def __init__(self, gpu: ImaginaryGpu, what_if: Optional[str] = None) -> None:
        if what_if is not None and what_if not in WHAT_IFS:
            raise ValueError("no what-if is called %r" % what_if)
        self._gpu = gpu
        self._what_if = what_if
        self._handles: List[Any] = []
        self._used: set = set()
        self.calls = ModuleCalls()
        self.sites = Sites(self.calls)
        self.tags = Tags(lambda: gpu.ledgers, self.calls)

    def put_in_place(self, patches: Patches) -> None:
        self.sites.put_in_place(patches)
        self.tags.put_in_place()
        for ledger in self._gpu.ledgers:
            ledger.sites = self.sites
        if self._what_if is not None:
            self._handles = patch_what_if(self._gpu, self, self._what_if, patches)
        else:
            self._see_autocast(patches)

    def leave(self) -> None:
        self.sites.leave()
        self.tags.leave()
        for handle in self._handles:
            handle.remove()

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

    def _see_autocast(self, patches: Patches) -> None:
        autocast = torch.amp.autocast_mode.autocast
        enter = autocast.__enter__

        def __enter__(context: Any) -> Any:
            if context.device == "cuda" and context._enabled:
                self.uses("autocast")
            return enter(context)

        patches.set(autocast, "__enter__", __enter__)
