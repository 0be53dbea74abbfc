"""What a rank of a whole run has done so far, counted to its end: for a display, for warnings, and for the run's record."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple, Optional

from brimful_inside.wire import RunCounters

# Reading the allocator's statistics takes some 20 µs (assumed, from the size of the dictionary that is built): so at most a
# two-thousandth of the time. Steps longer than this are looked at one by one.
LOOK_S = 0.05


class Held(NamedTuple):
    """What the caching allocators of a process hold now, and how often they had to try again."""

    allocated_bytes: int  # of the fullest card
    reserved_bytes: int
    retries: int  # of all cards


class Counting:
    """`held()` gives what the allocators hold, None on a CPU. Times are the host's: over many steps they are the device's."""

    def __init__(self, held: Callable[[], Optional[Held]], clock: Callable[[], float] = time.perf_counter):
        self._held_now = held
        self._clock = clock
        self._began: Optional[float] = None
        self._looked: Optional[float] = None
        self._retries: Optional[int] = None  # at the last look
        self._streak = self._longest = 0
        self._samples: Optional[int] = 0
        self._train_s = self._loading_s = 0.0

    def begin(self) -> None:
        """Training starts, or resumes after an evaluation."""
        self._began = self._clock()

    def step(self, samples: Optional[int], loading_s: float) -> None:
        """A step is complete, for which `samples` were taken (None: nobody knows) and `loading_s` were waited."""
        now = self._clock()
        if self._began is not None:
            self._train_s += now - self._began
            self._loading_s += loading_s
            self._samples = None if samples is None or self._samples is None else self._samples + samples
        self._began = now
        if self._looked is None or now - self._looked >= LOOK_S:
            self._looked = now
            self._look()

    def _look(self) -> None:
        held = self._held_now()
        if held is None:
            return
        grown = self._retries is not None and held.retries > self._retries
        self._retries = held.retries
        self._streak = self._streak + 1 if grown else 0
        self._longest = max(self._longest, self._streak)

    def read(self, loss: Optional[float]) -> RunCounters:
        """`loss`: of the latest step, or None."""
        held = self._held_now()
        return RunCounters(
            samples=self._samples,
            train_s=self._train_s,
            loading_s=self._loading_s,
            loss=loss,
            allocated_bytes=None if held is None else held.allocated_bytes,
            reserved_bytes=None if held is None else held.reserved_bytes,
            alloc_retries=None if held is None else held.retries,
            retry_streak=self._longest,
        )
