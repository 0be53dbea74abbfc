"""Forward passes, seen by a hook that is there for one call, and backward passes with the losses
they start from.
"""

from __future__ import annotations

import sys
import traceback
from itertools import chain
from typing import Any, Callable, List, Optional

import torch

from brimful_inside.probe.context import call_probe, current_probe, guarded, patch

STACKED_LOSSES = 256  # kept as one tensor: so many small ones would scatter over the allocator
SMALL_BYTES = 1024  # a loss in a larger storage is a view, which would keep all of that alive

_compiled = False  # torch.compile was used: a global hook would break its graphs, so none is set


class ForwardWatch:
    """Calls back at the next forward pass of any module, once, so that a step pays some
    microseconds.
    """

    def __init__(self, callback: Callable[[Any, Any], None]):
        self._callback = callback
        self._handle: Any = None
        self._with_gradients = False

    def arm(self, with_gradients: bool = False) -> None:
        """For the next forward pass; `with_gradients` for the next that has them, and the hook
        stays until then.
        """
        self._with_gradients = with_gradients
        if self._handle is None and not _compiled:
            self._handle = torch.nn.modules.module.register_module_forward_pre_hook(self._fire)

    def disarm(self) -> bool:
        """Whether it was armed: of several threads one hears so."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()
        return handle is not None

    def _fire(self, module: Any, args: Any) -> None:
        if (torch.is_grad_enabled() or not self._with_gradients) and self.disarm():
            self._callback(module, args)


def trains_now() -> bool:
    """Whether this thread is inside a forward pass with gradients of a module in training mode. The
    outermost module counts.
    """
    frame: Any = sys._getframe(1)
    outermost = None
    while frame is not None:
        outermost = frame if _calls_a_module(frame) else outermost
        frame = frame.f_back
    return torch.is_grad_enabled() and _is_training(outermost)


def trained_in(trace: Any) -> bool:
    """Whether the forward pass that an error has left by now was of a module in training mode. The
    outermost module counts.
    """
    return _is_training(
        next((frame for frame, _ in traceback.walk_tb(trace) if _calls_a_module(frame)), None)
    )


def _calls_a_module(frame: Any) -> bool:
    return (
        frame.f_code.co_name == "_call_impl"
        and frame.f_globals.get("__name__") == "torch.nn.modules.module"
    )


def _is_training(frame: Any) -> bool:
    return frame is not None and bool(getattr(frame.f_locals.get("self"), "training", False))


def patch_compile() -> None:
    """From the first torch.compile on, no hook is set."""

    def compile(original: Any, *args: Any, **kwargs: Any) -> Any:
        global _compiled
        _compiled = True
        call_probe("forward.disarm")
        return original(*args, **kwargs)

    patch(torch, "compile", compile)


def patch_backward() -> None:
    """Of torch.autograd, which Tensor.backward calls as well."""

    def backward(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        probe = current_probe()
        if probe is not None:
            probe.backward_begins(tensors)
        return original(tensors, *args, **kwargs)

    patch(torch.autograd, "backward", backward)


def first_of(tensors: Any) -> Any:
    """Of what backward() was called on: a tensor, or several."""
    return tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors or ()), None)


class Losses:
    """The loss of each step: the sum of what its backward passes began from, since the script
    weighs its micro-batches. On a device it is read at the end, and without `cut`, in a whole run,
    not at all: that would wait for the device.
    """

    def __init__(self, imaginary: bool, cut: bool = True):
        self._imaginary = imaginary
        self._cut = cut
        self._of_step: Any = None  # a float of a loss on the host, else a tensor of one number
        self._are_known: List[bool] = []  # by step
        self._kept: List[Any] = []  # the known ones: floats, and tensors of some
        self._open: List[Any] = []  # the latest of them on the device
        # as reported, else of the latest step, where that is on the host
        self.latest: Optional[float] = None
        self.reported = False  # the script reports its loss: what goes backward is not shown

    def backward(self, tensors: Any) -> None:
        """The first of the tensors that backward() was called on, where it is a single number."""
        loss = first_of(tensors)
        if self._imaginary or not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        if loss.device.type == "cpu":
            kept = loss.item()
        elif self._cut:
            kept = loss.detach().reshape(()).float()
            if kept.untyped_storage().nbytes() > SMALL_BYTES:
                kept = kept.clone()
        else:
            return
        self._of_step = kept if self._of_step is None else self._of_step + kept

    @guarded
    def step(self) -> None:
        """A step is complete."""
        loss, self._of_step = self._of_step, None
        on_host = isinstance(loss, float)
        if not self.reported:
            self.latest = loss if on_host else None
        if not self._cut:
            return
        self._are_known.append(loss is not None)
        if on_host:
            self._stack()
            self._kept.append(loss)
        elif loss is not None:
            self._open.append(loss)
        if len(self._open) >= STACKED_LOSSES:
            self._stack()

    def _stack(self) -> None:
        if self._open:
            self._kept.append(torch.stack(self._open))
            self._open = []

    def report(self, loss: Optional[float]) -> None:
        """The script's own number takes the place of what goes backward, which may be scaled or a
        part of the mean.
        """
        self.reported, self.latest = True, loss

    @guarded
    def unscale(self, scaler: Any) -> None:
        """A GradScaler's step begins: what went backward for it was the loss times its scale. The
        tensor that holds it spares a wait for the device.
        """
        if self._of_step is not None and scaler.is_enabled():
            scale = None if isinstance(self._of_step, float) else getattr(scaler, "_scale", None)
            self._of_step = self._of_step / (scaler.get_scale() if scale is None else scale)

    def skip(self) -> None:
        self._of_step = None

    def read(self, waits: bool) -> List[Optional[float]]:
        """By step, at the end of a trial; none of an imaginary card. Those on a device wait for it:
        with `waits` only."""
        kept = [*self._kept, *(loss.reshape(1) for loss in self._open)]
        if self._imaginary or not (waits or all(isinstance(part, float) for part in kept)):
            return []
        known = chain.from_iterable([p] if isinstance(p, float) else p.tolist() for p in kept)
        return [next(known) if is_known else None for is_known in self._are_known]
