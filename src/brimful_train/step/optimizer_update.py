"""The optimizer's update as something that can run out of memory without harm.

What had been changed is undone and done again in smaller pieces, so that each weight is updated
once. Two ways to undo: a fused kernel changes all of its parameters or none, and only their step
counters may have been raised before it, which a tensor's version counter shows. Anything else is
copied before it is changed, some 64 MiB at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from brimful.errors import DoesNotFit
from brimful_train.step.gradients import by_kind, in_groups, local
from brimful_train.step.oom import Missing, attempt, free_what_is_cached

# Assumed: small beside what a forward pass needs, and that is free during the update.
COPIED_AT_ONCE_BYTES = 64 * 2**20


@dataclass
class _Piece:
    """Parameters of one group, type and device: what one call of the optimizer changes."""

    group: dict[str, Any]
    parameters: list[torch.Tensor]

    def with_gradients(self) -> list[torch.Tensor]:
        return [p for p in self.parameters if p.grad is not None]

    def halves(self) -> "list[_Piece]":
        """Both, or of a single parameter the piece itself."""
        middle = len(self.parameters) // 2
        halves = (self.parameters[:middle], self.parameters[middle:])
        return [_Piece(self.group, half) for half in halves if half]


class Update(Optimizer):
    """Wraps an optimizer (as ZeroRedundancyOptimizer does), and has its groups and its state.

    `on_missing` is called with each failure that was survived. `step` raises DoesNotFit when a
    single parameter cannot be updated; others may have been by then, so that the last checkpoint is
    what counts.
    """

    def __init__(
        self, inner: Optimizer, device: torch.device, on_missing: Callable[[Missing], None]
    ):
        super().__init__(inner.param_groups, inner.defaults)
        self.inner = inner
        self.state = inner.state
        self._device = device
        self._on_missing = on_missing
        self._pieces = [
            _Piece(group, parameters)
            for group in inner.param_groups
            for parameters in by_kind(group["params"])
        ]
        self._fused = all(group.get("fused") for group in inner.param_groups)
        # This object's own step calls hooks and profiler once; each call of the wrapped one would
        # call them again.
        step: Any = type(inner).step
        self._raw_step = step.__wrapped__ if getattr(step, "hooked", False) else step
        self._step_supports_amp_scaling = getattr(inner, "_step_supports_amp_scaling", False)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        if hasattr(self, "found_inf"):  # a GradScaler leaves it to a fused kernel to skip the step
            for name in ("found_inf", "grad_scale"):
                setattr(self.inner, name, getattr(self, name))
        try:
            for piece in self._pieces if self._fused else self._copied_pieces():
                self._survive(piece, self._try_fused if self._fused else self._try_copied)
        finally:
            if hasattr(self.inner, "found_inf"):
                del self.inner.found_inf, self.inner.grad_scale  # type: ignore[attr-defined]

    def _survive(
        self, piece: _Piece, tried: Callable[[_Piece], Missing | None], last: bool = False
    ) -> None:
        """One call; where memory is missing in halves, after all that is cached was given back."""
        missing = tried(piece)
        if missing is None:
            return
        if last:
            shape = tuple(piece.parameters[0].shape)
            raise DoesNotFit(
                f"The optimizer's update of one parameter of shape {shape} does not fit into "
                f"memory: {missing.message}",
                "The batch size does not change what an update needs. The last checkpoint stays "
                "as it is.",
                "Choose an optimizer with less state (sgd, adafactor) or a smaller model, or free "
                "memory on the device.",
            )
        self._on_missing(missing)
        free_what_is_cached(self._device)
        for half in piece.halves():
            self._survive(half, tried, last=len(piece.parameters) == 1)

    def _try_fused(self, piece: _Piece) -> Missing | None:
        """The kernel changes all parameters or, where it fails, none. Counters that were raised
        before it are put back.
        """
        first = next((p for p in piece.parameters if p.grad is not None), None)
        if first is None:
            return None
        state = self.inner.state
        counter = state.get(first, {}).get("step")
        before = None if counter is None else local(counter)._version
        without = [] if state.get(first) else [p for p in piece.parameters if not state.get(p)]
        missing = attempt(lambda: self._inner_step(piece))
        if missing is not None:
            # an optimizer that makes its state in its first step makes it anew
            for parameter in without:
                state.pop(parameter, None)
            if counter is not None and local(counter)._version != before:
                torch._foreach_sub_([state[p]["step"] for p in piece.with_gradients()], 1)
        return missing

    def _try_copied(self, piece: _Piece) -> Missing | None:
        """Kernels that may stop half-way: copied, changed, and put back where it failed."""
        copied = attempt(lambda: _Kept(piece.parameters, self.inner.state))
        if isinstance(copied, Missing):
            return copied
        missing = attempt(lambda: self._inner_step(piece))
        if missing is not None:
            copied.put_back(self.inner.state)
        return missing

    def _inner_step(self, piece: _Piece) -> None:
        """The wrapped optimizer's step, on these parameters alone."""
        groups = self.inner.param_groups
        self.inner.param_groups = [{**piece.group, "params": piece.parameters}]
        try:
            self._raw_step(self.inner)
        finally:
            self.inner.param_groups = groups

    def _copied_pieces(self) -> Iterator[_Piece]:
        for piece in self._pieces:
            changed = in_groups(piece.with_gradients(), self._bytes_changed, COPIED_AT_ONCE_BYTES)
            yield from (_Piece(piece.group, parameters) for parameters in changed)

    def _bytes_changed(self, parameter: torch.Tensor) -> int:
        held = self.inner.state.get(parameter, {}).values()
        return 2 * local(parameter).nbytes + sum(
            local(v).nbytes for v in held if isinstance(v, torch.Tensor)
        )


class _Kept:
    """What a step of `parameters` may change: themselves, their gradients and their state."""

    def __init__(self, parameters: list[torch.Tensor], state: Any):
        self._states = [(p, dict(state[p]) if p in state else None) for p in parameters]
        held = (value for _, state_of in self._states for value in (state_of or {}).values())
        tensors = (*(p.detach() for p in parameters), *(p.grad for p in parameters), *held)
        self._originals = [local(t) for t in tensors if isinstance(t, torch.Tensor)]
        self._copies = [torch.empty_like(tensor) for tensor in self._originals]
        torch._foreach_copy_(self._copies, self._originals)

    def put_back(self, state: Any) -> None:
        with torch.no_grad():
            torch._foreach_copy_(self._originals, self._copies)
        for parameter, held in self._states:
            if held is None:
                state.pop(parameter, None)
            else:
                state[parameter].clear()
                state[parameter].update(held)
