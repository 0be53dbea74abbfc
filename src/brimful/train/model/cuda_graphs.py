"""CUDA graphs: the forward and backward of a whole micro-batch are recorded once, and replayed as one launch each.

torch.cuda.make_graphed_callables does the recording. Added here: which calls are replayed and which run as always, that the
recording itself leaves no trace (buffers, random numbers), and that gradients may be accumulated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from brimful.errors import UsageError
from brimful_inside.simulator.oom_patterns import face_of

__all__ = ["graph_model"]

_Key = tuple[tuple[torch.Size, torch.dtype, bool], ...]


def graph_model(model: nn.Module, micro_batch: int) -> None:
    """From now on `model`'s training forwards of `micro_batch` samples are replayed, once the first has been recorded.

    The class is changed in place, so that parameters and keys keep their names. Other sizes, evaluation, and forwards without
    gradients run as always. A model that must be called with anything but tensors is refused at its first call: every call
    would run as always, and the option would do nothing.
    """
    if "_graphed" not in model.__dict__:  # else by a training before this one
        model.__class__ = _graphed(type(model))
    model.__dict__["_graphed"] = _Recording(micro_batch)


class _Recording:
    """The graphs of a model: one at most, of the first whole-size micro-batch."""

    def __init__(self, micro_batch: int):
        self.micro_batch = micro_batch
        self.key: _Key | None = None
        self.replay: Callable[..., Any] | None = None
        self.recording = False

    def __deepcopy__(self, memo: dict) -> _Recording:
        return _Recording(self.micro_batch)  # a copy of the model has tensors of its own, which no graph knows


@functools.cache
def _graphed(kind: type[nn.Module]) -> type[nn.Module]:
    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        state: _Recording = self.__dict__["_graphed"]
        if state.recording or not (self.training and torch.is_grad_enabled()):
            return kind.forward(self, *args, **kwargs)
        _refuse_all_but_tensors(self, args, kwargs)
        if args[0].shape[0] != state.micro_batch:
            return kind.forward(self, *args, **kwargs)
        key = tuple((a.shape, a.dtype, a.requires_grad) for a in args)
        if state.replay is None:
            state.replay, state.key = _record(self, state, args), key
        if key != state.key:
            return kind.forward(self, *args)
        _own_gradients(self)
        return state.replay(*args)

    return type(f"Graphed{kind.__name__}", (kind,), {"forward": forward, "__module__": kind.__module__})


def _refuse_all_but_tensors(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    others = [*kwargs, *(type(a).__name__ for a in args if not isinstance(a, torch.Tensor) or not a.is_cuda or not a.ndim)]
    if others or not args:
        raise UsageError(
            f"CUDA graphs: {type(model).__name__} is called with {', '.join(others) or 'nothing'}",
            "A graph is recorded of a model that is given tensors on the card, by position, and nothing else.",
            "Call the model with tensors alone, or train without CUDA graphs.",
        )


def _record(model: nn.Module, state: _Recording, args: tuple[torch.Tensor, ...]) -> Callable[..., Any]:
    """Records a forward and a backward at these shapes. Out of memory is raised as it is."""
    static = tuple(a.detach().clone().requires_grad_(a.requires_grad) for a in args)
    state.recording = True
    failed = ""
    try:
        with _without_trace(model, args[0].device), _uncached_autocast():
            torch.cuda.make_graphed_callables(model, static, allow_unused_input=True)
            return model.__dict__["forward"]
    except (RuntimeError, AssertionError) as error:
        if face_of(f"{type(error).__module__}.{type(error).__qualname__}", str(error)) is not None:
            raise
        failed = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    finally:
        model.__dict__.pop("forward", None)
        state.recording = False
    raise UsageError(
        f"CUDA graphs: {type(model).__name__} cannot be recorded: {failed}",
        "A forward that waits for the card (.item(), shapes that depend on values), has hooks, or calls other ranks cannot be.",
        "Train without CUDA graphs.",
    )


@contextmanager
def _without_trace(model: nn.Module, device: torch.device) -> Iterator[None]:
    """The recording trains some steps: what they change in buffers and in the random state is undone."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    random_state = torch.cuda.get_rng_state(device)
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
        torch.cuda.set_rng_state(random_state, device)


@contextmanager
def _uncached_autocast() -> Iterator[None]:
    """The autocast around the call, without its cache: a recorded weight must be cast anew at each replay."""
    if not torch.is_autocast_enabled("cuda"):
        yield
        return
    with torch.autocast("cuda", dtype=torch.get_autocast_dtype("cuda"), cache_enabled=False):
        yield


def _own_gradients(model: nn.Module) -> None:
    """Gradients stand ready, so that a replay's are added to them.

    autograd would otherwise take the graph's own tensors as the gradients, and the next micro-batch's replay would write over
    what had been accumulated.
    """
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
