"""The time of each step: by device events on an accelerator, read at the end; by the host's clock on a CPU."""

from __future__ import annotations

import time
from typing import Any, List, Optional, Tuple

import torch

from brimful_inside.probe.accelerator import accelerator_type, is_started

KEPT_STEPS = 2000  # steps whose times are kept in a run without an end, as many as `iterations` counts batches of


class HostClock:
    device: Any = None

    def mark(self) -> Any:
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any, wait: bool) -> Optional[float]:
        return end - begin


class NoClock:
    """An imaginary card computes nothing, so its steps take no time that could be told."""

    device: Any = None

    def mark(self) -> Any:
        return None

    def seconds(self, begin: Any, end: Any, wait: bool) -> Optional[float]:
        return None


class EventClock:
    """Events on the current stream of the accelerator that is trained on. Recording one does not wait for anything."""

    device: Any = None  # None: not known yet, so the current one

    def mark(self) -> Any:
        if not is_started():
            return time.perf_counter()
        kind = accelerator_type()
        if kind == "cuda" and torch.cuda.is_current_stream_capturing():
            return time.perf_counter()  # an event recorded now would become a part of the captured graph
        event: Any = torch.cuda.Event(enable_timing=True) if kind == "cuda" else torch.Event(kind, enable_timing=True)
        if self.device is None:
            event.record()
        else:  # a script that says "cuda:1" may leave cuda:0 the current one, on which nothing goes on
            event.record((torch.cuda if kind == "cuda" else torch.accelerator).current_stream(self.device))
        return (event, time.perf_counter())

    def seconds(self, begin: Any, end: Any, wait: bool) -> Optional[float]:
        """None while the device has not reached `end`, unless `wait`. Where an event is missing, the host's clock speaks."""
        if not (isinstance(begin, tuple) and isinstance(end, tuple)):
            return _host_time(end) - _host_time(begin)
        try:
            if wait:
                end[0].synchronize()
            elif not end[0].query():
                return None
            return begin[0].elapsed_time(end[0]) / 1000.0
        except RuntimeError:  # the device is in an error state, after an illegal access, say
            return end[1] - begin[1]


def _host_time(mark: Any) -> float:
    return mark[1] if isinstance(mark, tuple) else mark


class StepTimes:
    """Begins and ends of the measured steps. A step begins where the one before it ended, or where training resumed."""

    def __init__(self, clock: Any, warmup_steps: int, steps: Optional[int]):
        self._clock = clock
        self._first = warmup_steps + 1
        self._last = KEPT_STEPS if steps is None else warmup_steps + steps
        self._begin: Any = None
        self._open: List[Tuple[Any, Any]] = []
        self._seconds: List[float] = []

    def begin_anew(self, warmup_steps: int) -> None:
        """What was measured so far does not count: steps after the first `warmup_steps` do."""
        self._last += warmup_steps + 1 - self._first
        self._first = warmup_steps + 1
        self._begin, self._open, self._seconds = None, [], []

    def works_on(self, device: Any) -> None:
        """Where the parameters lie that the steps change, if that is an accelerator."""
        if device is not None and device.type == accelerator_type():
            self._clock.device = device

    def begin(self) -> None:
        """Training starts, or resumes after an evaluation."""
        self._begin = self._clock.mark()

    def end_step(self, number: int) -> bool:
        """The `number`-th step is complete. True if it is one of those that are measured."""
        if number < self._first - 1 or number > self._last:
            return False
        begin, self._begin = self._begin, self._clock.mark()
        if number < self._first or begin is None:
            return number >= self._first
        self._open.append((begin, self._begin))
        if len(self._open) > 64:
            self._collect(wait=False)
        return True

    def _collect(self, wait: bool) -> None:
        while self._open:
            seconds = self._clock.seconds(*self._open[0], wait)
            if seconds is None:
                if not wait:
                    return
            else:
                self._seconds.append(seconds)
            self._open.pop(0)

    def reached(self) -> bool:
        """Whether the device has come to the end of every measured step so far. Waits for nothing."""
        self._collect(wait=False)
        return not self._open

    def read(self, wait: bool) -> List[float]:
        """Seconds of each measured step. With `wait`, the device is waited for: at the end of a trial alone."""
        self._collect(wait)
        return list(self._seconds)


def clock_for(device: str) -> Any:
    if device == "imaginary":
        return NoClock()
    return EventClock() if device == "accelerator" else HostClock()
