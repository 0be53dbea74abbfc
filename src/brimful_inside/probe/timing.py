"""The time of each step, by device events on an accelerator, else by the host's clock; and the
counters of a whole run.
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional, Tuple

import torch

from brimful_inside.probe.memory.device_memory import Held, accelerator_type, is_started
from brimful_inside.probe.passes import KEPT_STEPS
from brimful_inside.wire import RunCounters

KEPT_EVENTS = 64  # pairs, before the device is asked which of them it has reached
# Reading the allocator's statistics takes some 20 µs (assumed, from the size of the dictionary that
# is built): so at most a two-thousandth of the time. Of longer steps each is polled.
POLL_S = 0.05


class HostClock:
    # that is trained on, where it is an accelerator; None: not known yet, so the current one
    device: Any = None

    def mark(self) -> Any:
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any, wait: bool) -> Optional[float]:
        return end - begin


class NoClock(HostClock):
    """An imaginary card computes nothing, so its steps have no duration."""

    def mark(self) -> Any:
        return None

    def seconds(self, begin: Any, end: Any, wait: bool) -> Optional[float]:
        return None


class EventClock(HostClock):
    """Events on the current stream of the accelerator that is trained on. Recording one does not
    wait for anything.
    """

    def mark(self) -> Any:
        if not is_started():
            return time.perf_counter()
        kind = accelerator_type()
        if kind == "cuda" and torch.cuda.is_current_stream_capturing():
            return (
                time.perf_counter()
            )  # an event recorded now would become a part of the captured graph
        event: Any = (
            torch.cuda.Event(enable_timing=True)
            if kind == "cuda"
            else torch.Event(kind, enable_timing=True)
        )
        if self.device is None:
            event.record()
        else:  # a script that uses "cuda:1" may leave cuda:0 the current one, on which nothing runs
            event.record(
                (torch.cuda if kind == "cuda" else torch.accelerator).current_stream(self.device)
            )
        return (event, time.perf_counter())

    def seconds(self, begin: Any, end: Any, wait: bool) -> Optional[float]:
        """None while the device has not reached `end`, unless `wait`. Where an event is missing,
        the host's clock counts.
        """
        if not (isinstance(begin, tuple) and isinstance(end, tuple)):
            began, ended = (mark[1] if isinstance(mark, tuple) else mark for mark in (begin, end))
            return ended - began
        try:
            if wait:
                end[0].synchronize()
            elif not end[0].query():
                return None
            return begin[0].elapsed_time(end[0]) / 1000.0
        except RuntimeError:  # the device is in an error state, after an illegal access, say
            return end[1] - begin[1]


def clock_for(device: str) -> Any:
    return {"imaginary": NoClock, "cpu": HostClock}.get(device, EventClock)()


class StepTimes:
    """Begins and ends of the measured steps. A step begins where the one before it ended, or where
    training resumed.
    """

    def __init__(self, clock: Any, warmup_steps: int, steps: Optional[int]):
        self._clock = clock
        self._steps = steps
        self._first = warmup_steps + 1
        self._last = KEPT_STEPS if steps is None else warmup_steps + steps
        self._begin: Any = None
        self._open: List[Tuple[Any, Any]] = []
        self._seconds: List[float] = []
        self._processor_began = 0.0
        self.processor_s: List[float] = []  # of this process, in each measured step

    def restart(self, warmup_steps: int) -> None:
        """The times so far do not count: steps after the first `warmup_steps` do."""
        self._last += warmup_steps + 1 - self._first
        self._first = warmup_steps + 1
        self._begin, self._open, self._seconds, self.processor_s = None, [], [], []

    def extend(self, more: int) -> None:
        """Times up to so many more steps: as many as were wanted count, the latest. A script that
        ends before has some too.
        """
        self._last += more

    @property
    def passed_over(self) -> int:
        """How many of the steps timed so far do not count, for later ones do."""
        return 0 if self._steps is None else max(0, len(self.processor_s) - self._steps)

    def works_on(self, device: Any) -> None:
        """Where the parameters lie that the steps change, if that is an accelerator."""
        if device is not None and device.type == accelerator_type():
            self._clock.device = device

    def begin(self) -> None:
        self._begin, self._processor_began = self._clock.mark(), time.process_time()

    def mark(self) -> Any:
        """The present, for `between`."""
        return self._clock.mark()

    def between(self, marks: List[Any]) -> List[float]:
        """Seconds from each mark to the next, as far as the device has come."""
        durations = [
            self._clock.seconds(begin, end, False)
            for begin, end in zip(marks, marks[1:])
            if begin is not None
        ]
        return [seconds for seconds in durations if seconds is not None]

    def end_step(self, number: int) -> bool:
        """The `number`-th step is complete. True if it is one of those that are measured."""
        if number < self._first - 1 or number > self._last:
            return False
        begin, self._begin = self._begin, self._clock.mark()
        began, self._processor_began = self._processor_began, time.process_time()
        if number < self._first or begin is None:
            return number >= self._first
        self._open.append((begin, self._begin))
        self.processor_s.append(self._processor_began - began)
        if len(self._open) > KEPT_EVENTS:
            self._collect(wait=False)
        return True

    def _collect(self, wait: bool) -> None:
        while self._open:
            seconds = self._clock.seconds(*self._open[0], wait)
            if seconds is not None:
                self._seconds.append(seconds)
            elif not wait:
                return
            self._open.pop(0)

    def reached(self) -> bool:
        """Whether the device has come to the end of every measured step. Waits for nothing."""
        self._collect(wait=False)
        return not self._open

    def read(self, wait: bool) -> List[float]:
        """Seconds of each measured step. With `wait` this waits for the device: at the end of a
        trial alone.
        """
        self._collect(wait)
        return self._seconds[self.passed_over :]


class RunCounter:
    """Counts what a rank of a whole run has done. `held()` gives what the allocators hold, None on
    a CPU. Times are the host's: over many steps they are the device's."""

    def __init__(
        self, held: Callable[[], Optional[Held]], clock: Callable[[], float] = time.perf_counter
    ):
        self._held = held
        self._clock = clock
        self._began: Optional[float] = None
        self._polled: Optional[float] = None
        self._retries: Optional[int] = None  # at the last poll
        self._streak = self._longest = 0
        self._samples: Optional[int] = 0
        self._steps = 0
        self._train_s = self._loading_s = 0.0

    def begin(self, waited_s: float = 0.0) -> None:
        """Training starts, or resumes after an evaluation, with a batch that it waited `waited_s`
        for."""
        self._began = self._clock() - waited_s

    def step(self, samples: Optional[int], loading_s: float) -> None:
        """A step is complete, of `samples` samples (None: not known), which waited `loading_s` for
        data.
        """
        now = self._clock()
        self._steps += 1
        # Without a loader the first step is noticed at its backward pass: neither its samples nor
        # all of its time are known.
        if self._began is not None and (self._steps > 1 or samples is not None):
            self._train_s += now - self._began
            self._loading_s += loading_s
            self._samples = (
                None if samples is None or self._samples is None else self._samples + samples
            )
        self._began = now
        if self._polled is None or now - self._polled >= POLL_S:
            self._polled = now
            self._poll()

    def _poll(self) -> None:
        held = self._held()
        if held is not None:
            grown = self._retries is not None and held.retries > self._retries
            self._retries = held.retries
            self._streak = self._streak + 1 if grown else 0
            self._longest = max(self._longest, self._streak)

    def read(self, loss: Optional[float], of_all_ranks: bool = False) -> RunCounters:
        """`loss`: as it is shown, or None; `of_all_ranks`: not of this one alone."""
        allocated, reserved, retries = self._held() or (None, None, None)
        return RunCounters(
            self._samples,
            self._train_s,
            self._loading_s,
            loss,
            allocated,
            reserved,
            retries,
            self._longest,
            of_all_ranks,
        )
