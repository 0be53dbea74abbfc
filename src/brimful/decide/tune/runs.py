"""What the trials of a search have shown: which sizes ran, which did not fit, which fail, and how fast they were."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from brimful.decide.speed.measured import TOLERANCE, noise_of
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import Outcome, Setting, TrialResult

HOPELESS = (Outcome.PROBE_NOT_LOADED, Outcome.UNSUPPORTED)  # no other size can do better, unless one has done already


@dataclass(frozen=True)
class Context:
    """All that a run has besides its batch size."""

    settings: tuple[tuple[str, Setting], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


class Runs:
    """Runs by context and batch size. `ceiling` is the largest size that may still fit."""

    def __init__(self, ceiling: int, fits: Callable[[TrialResult], bool]) -> None:
        self.ceiling = ceiling
        self.samples: list[TrialResult] = []  # every one, in order
        self.dead: set[tuple[Context, int]] = set()  # sizes that crash, take too long, or leave no whole batch
        self._fits = fits
        self._fitting: dict[tuple[Context, int], list[TrialResult]] = {}

    def add(self, sample: TrialResult, context: Context, size: int, lowers: bool) -> None:
        """Files a sample. `lowers`: a size that does not fit lowers the ceiling (not so in a context that is only tried)."""
        self.samples.append(sample)
        key = (context, size)
        if self._fits(sample):
            self._fitting.setdefault(key, []).append(sample)
        elif sample.outcome in OUT_OF_MEMORY or sample.outcome is Outcome.COMPLETED:  # completed, with its peak over the budget
            if lowers:
                self._lower(size - 1)
        elif sample.outcome is not Outcome.INTERRUPTED:
            self.dead.add(key)
            self._fitting.pop(key, None)

    def _lower(self, ceiling: int) -> None:
        """No larger size is named from now on, whatever earlier runs of it showed."""
        self.ceiling = min(self.ceiling, ceiling)
        for key in [key for key in self._fitting if key[1] > self.ceiling]:
            del self._fitting[key]

    def fitting(self, context: Context | None = None) -> list[TrialResult]:
        """Runs that ended within the budget, of one context or of all."""
        return [run for (one, _), runs in self._fitting.items() if context in (None, one) for run in runs]

    def at(self, context: Context, size: int) -> list[TrialResult]:
        return self._fitting.get((context, size), [])

    def rates(self, context: Context, size: int) -> tuple[float, ...]:
        """Samples per second of the runs there that have one."""
        return tuple(run.samples_per_s for run in self.at(context, size) if run.samples_per_s)

    def middle(self, context: Context, size: int) -> float | None:
        rates = self.rates(context, size)
        return statistics.median(rates) if rates else None

    def best(self, context: Context, below: int | None = None) -> float | None:
        """The best median rate of a context, of sizes `below` one alone."""
        sizes = [size for one, size in self._fitting if one == context and (below is None or size < below)]
        middles = [self.middle(context, size) for size in sizes]
        return max((middle for middle in middles if middle is not None), default=None)

    def tolerance(self) -> float:
        """3 %, or the noise of all runs, whichever is more."""
        groups = {number: rates for number, key in enumerate(self._fitting) if (rates := self.rates(*key))}
        return max(TOLERANCE, noise_of(groups, self.fitting()) or 0.0)
