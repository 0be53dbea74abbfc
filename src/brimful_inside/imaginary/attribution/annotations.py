"""What a trace says of each allocation beside its bytes (simulator/trace.py): who asked for it, and what it becomes."""

from __future__ import annotations

from typing import Any, Optional

import torch

from brimful_inside.imaginary.attribution.call_sites import CallSites
from brimful_inside.imaginary.attribution.categories import Categories
from brimful_inside.imaginary.attribution.modules import ModuleCalls
from brimful_inside.imaginary.attribution.what_if import WHAT_IFS, patch_what_if
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.simulator.trace import Uses

__all__ = ["Annotations"]

_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)


class Annotations:
    """Who asks for memory (`call_sites`) and what it becomes (`categories`), written into the traces of `gpu`."""

    def __init__(self, gpu: ImaginaryGpu, what_if: Optional[str] = None) -> None:
        if what_if is not None and what_if not in WHAT_IFS:
            raise ValueError("no what-if is called %r" % what_if)
        self._gpu = gpu
        self._what_if = what_if
        self._used: set = set()
        self.calls = ModuleCalls()
        self.call_sites = CallSites(self.calls)
        self.categories = Categories(gpu.ledgers, self.calls)

    def patch(self, patches: Patches) -> None:
        """Modules, the autograd engine and optimizers report to us, until `patches` are undone."""
        self.call_sites.patch(patches)
        self.categories.patch(patches)
        for ledger in self._gpu.ledgers:
            ledger.sites = self.call_sites
        if self._what_if is not None:
            patch_what_if(self._what_if, self._gpu.card.capability, self.calls, self.uses, patches)
        else:
            self._watch_autocast(patches)

    def made(self, tensor: Any, func: Any) -> None:
        """`tensor` was made by `func`, which may have read it from the host."""
        if func in _FROM_DATA:
            self.categories.copied(tensor)

    def copied(self, tensor: Any) -> None:
        """`tensor` was filled from the host."""
        self.categories.copied(tensor)

    def uses(self, name: str) -> None:
        """The script uses `name`; written once."""
        if name not in self._used:
            self._used.add(name)
            for ledger in self._gpu.ledgers:
                ledger.note(Uses(name))

    def _watch_autocast(self, patches: Patches) -> None:
        autocast = torch.amp.autocast_mode.autocast
        enter = autocast.__enter__

        def __enter__(context: Any) -> Any:
            if context.device == "cuda" and context._enabled:
                self.uses("autocast")
            return enter(context)

        patches.set(autocast, "__enter__", __enter__)
