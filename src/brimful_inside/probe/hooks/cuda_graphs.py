"""CUDA graphs: an optimizer's step that was captured is made at every replay, and not when it was captured."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, List, Tuple

import torch

from brimful_inside.probe.context import tell_own_error


class Captures:
    """What each graph makes of a training when it is replayed. `replays` asks for a step of the trial."""

    def __init__(self, steps: Any, on_capture: Callable[[], None], on_replay: Callable[[], None]):
        self._steps = steps
        self._on_capture = on_capture
        self._on_replay = on_replay
        self._taken: Any = weakref.WeakKeyDictionary()  # graph -> the optimizers whose steps it holds

    def begins(self, graph: Any) -> None:
        self._steps.captured = []

    def ends(self, graph: Any) -> None:
        taken, self._steps.captured = self._steps.captured, None
        if taken:
            self._taken[graph] = taken
            self._on_capture()

    def failed(self, graph: Any) -> None:
        """The capture came to nothing: steps are counted as they are made again."""
        self._steps.captured = None

    def replayed(self, graph: Any) -> None:
        taken: List[Any] = self._taken.get(graph) or []
        if taken:
            self._on_replay()
            for seen in taken:
                self._steps.made_again(seen)


_WATCHED: Tuple[Tuple[str, str], ...] = (("capture_begin", "begins"), ("capture_end", "ends"), ("replay", "replayed"))


def watch_graphs(probe_of: Callable[[], Any]) -> None:
    """Into the methods of torch.cuda.CUDAGraph, PyTorch's own or that of an imaginary card."""
    kind: Any = torch.cuda.CUDAGraph
    for name, told in _WATCHED:
        setattr(kind, name, _telling(getattr(kind, name), told, probe_of))


def _telling(original: Any, told: str, probe_of: Callable[[], Any]) -> Any:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except BaseException:
            if told == "ends":
                _tell(probe_of(), "failed", self)
            raise
        _tell(probe_of(), told, self)
        return result

    return method


def _tell(probe: Any, told: str, graph: Any) -> None:
    if probe is None:
        return
    try:
        getattr(probe.captures, told)(graph)
    except Exception:
        tell_own_error("a CUDA graph (%s)" % told)
