"""Which batch size runs next, with the same other settings: four times apart, up until it brings
nothing and down until it is clearly slower; then between the best of them; then once more those
that may still be the best.
"""

import math
from dataclasses import dataclass

from brimful.decide.speed.measured import TOLERANCE, speed_estimate
from brimful.decide.tune.problem import FACTOR, Candidate, Others, Runs, Top

TURNS = 2  # of two candidates, while it is not clear which is faster
WORTH = 0.10  # a gain that is no larger than this at best is not worth more trials
CLOSE = 1.5  # neighbouring sizes nearer than this are not worth another one between them


@dataclass(frozen=True)
class Ladder:
    """By the runs so far. `most`: the largest size that may be named."""

    runs: Runs
    others: Others
    start: int
    most: int

    def next_candidate(self) -> Candidate | None:
        for size in (self.start, self.larger(), self._smaller(), *self._between()):
            if size is not None and self._is_new(size):
                return self._at(size)
        return self._again()

    def _at(self, size: int) -> Candidate:
        return Candidate(self.others, size)

    def _is_new(self, size: int) -> bool:
        return self.runs.usable(self._at(size)) and not self.runs.at(self._at(size))

    def larger(self) -> int | None:
        """The next size up; None where a larger one brings nothing, or something keeps the search
        from it."""
        runs, top = self.runs, max(self.runs.middles(self.others), default=None)
        if top is None or self._is_flat(top) or self._blocked_above(top):
            return None
        size = min(FACTOR * top, runs.ceiling)
        if size < FACTOR * top and runs.ceiling < self.most:
            size = math.isqrt(top * (runs.ceiling + 1))  # half way to what did not fit
            return size if size >= CLOSE * top else None
        return size if size > top else None

    def top(self, is_over: bool) -> Top | None:
        """Why nothing above was tried; None where it brought nothing. `is_over`: no trials are
        left."""
        top = max(self.runs.middles(self.others), default=None)
        if top is None or self._is_flat(top):
            return None
        if self.larger() is not None:
            return "trials" if is_over else None
        at_the_ceiling: Top = "ceiling" if self.runs.ceiling == self.most else "memory"
        return self._blocked_above(top) or at_the_ceiling

    def _blocked_above(self, top: int) -> Top | None:
        """The script crashed or took too long at a larger size, or ended before a speed was
        seen."""
        runs = self.runs
        if any(dead.size > top for dead in runs.dead if dead.others == self.others):
            return "failed"
        unrated = [c for c in runs.candidates if c.others == self.others and c.size > top]
        return "short" if unrated else None

    def _is_flat(self, size: int) -> bool:
        """Whether it, and where others use the machine the one before it too, is no faster than a
        smaller one."""
        middles = sorted(self.runs.middles(self.others).items())
        rates = [rate for smaller, rate in middles if smaller <= size]
        gain = self.runs.gain(self._at(size), self._at(middles[0][0]))
        count = 2 if gain is not None and gain.loaded else 1
        return len(rates) > count and max(rates[-count:]) <= max(rates[:-count]) * (1 + TOLERANCE)

    def _smaller(self) -> int | None:
        middles, size = self.runs.middles(self.others), self.start
        while size > 1:
            size = max(1, size // FACTOR)
            if self._is_new(size):
                return size
            if size in middles and middles[size] < max(middles.values()) * (1 - 2 * TOLERANCE):
                break
        return None

    def _between(self) -> tuple[int | None, int | None]:
        """Where the best lies lower than its larger neighbour, and where the knee does."""
        speed = speed_estimate(self.runs.fitting(self.others))
        sizes = [point.batch_size for point in speed.points]
        best, knee = speed.best_batch_size, speed.knee_batch_size
        above = min((size for size in sizes if best and size > best), default=None)
        below = max((size for size in sizes if knee and size < knee), default=None)
        return _middle(best, above), _middle(below, knee)

    def _again(self) -> Candidate | None:
        """One of the better half of the sizes, where it may be worth more than the one that would
        be named, by turns with it."""
        middles = self.runs.middles(self.others)
        knee = speed_estimate(self.runs.fitting(self.others)).knee_batch_size
        sizes = sorted(middles, key=lambda size: -middles[size])
        for size in sizes[: max(2, len(sizes) // 2)]:
            named, candidate = self._at(knee or size), self._at(size)
            gain = self.runs.gain(candidate, named)
            if candidate != named and gain and gain.high > WORTH and gain.turns < TURNS:
                return self.runs.turn(named, candidate)
        return None


def _middle(low: int | None, high: int | None) -> int | None:
    """The geometric middle of two sizes, a multiple of 8 from 32 on; None where they are close."""
    if low is None or high is None or high < CLOSE * low:
        return None
    middle = math.isqrt(low * high)
    middle = round(middle / 8) * 8 if middle >= 32 else middle
    return middle if low < middle < high else None
