"""Adafactor whose step size is the learning rate.

torch.optim.Adafactor always takes relative steps: α = max(ε₂, RMS(parameter)) · min(lr, 1/√t) (Shazeer and Stern 2018,
arXiv 1804.04235, sections 7 and 8), so that a schedule of the learning rate is only an upper limit to another schedule, and a
parameter that starts at zero moves a thousandth as far. This one takes α = lr.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Adafactor
from torch.optim._adafactor import adafactor

__all__ = ["AbsoluteAdafactor"]

# Assumed to be above the RMS of any parameter, so that max(_ABOVE, RMS) · min(lr / _ABOVE, 1/√t) is lr. A power of two: the
# division and the multiplication are exact.
_ABOVE = 2.0**40


class AbsoluteAdafactor(Adafactor):
    """torch's Adafactor with α = lr; factored second moments, update clipping and decoupled weight decay are its own."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lists: list[list] = [[] for _ in range(6)]
            has_complex = self._init_group(group, *lists)
            adafactor(
                *lists,
                d=group["d"],
                lr=group["lr"] / _ABOVE,
                beta2_decay=group["beta2_decay"],
                weight_decay=group["weight_decay"] * _ABOVE,  # it is multiplied by lr
                eps1=group["eps"][0],
                eps2=_ABOVE,
                foreach=group["foreach"],
                maximize=group["maximize"],
                has_complex=has_complex,
            )
        return loss
