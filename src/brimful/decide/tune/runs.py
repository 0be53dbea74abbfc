"""What the trials of a search have shown: which sizes ran, which did not fit, which fail, and how
fast they were.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from brimful.decide.speed.turns import Gain, gain
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import Outcome, Setting, TrialResult

# no other size can do better, unless one has done already
HOPELESS = Outcome.PROBE_NOT_LOADED, Outcome.UNSUPPORTED


@dataclass(frozen=True)
class Context:
    """All that a run has besides its batch size."""

    settings: tuple[tuple[str, Setting], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Way:
    """One way to train: all that is chosen."""

    context: Context
    size: int

    @property
    def settings(self) -> dict[str, Setting]:
        return {"batch_size": self.size} | dict(self.context.settings)


class Runs:
    """Runs by the way that was run. `ceiling` is the largest size that may still fit."""

    def __init__(self, ceiling: int, fits: Callable[[TrialResult], bool]) -> None:
        self.ceiling = ceiling
        self.samples: list[TrialResult] = []  # every one, in order
        self.dead: set[Way] = set()  # ways that crash, take too long, or leave no whole batch
        self._fits = fits
        self._fitting: dict[Way, list[TrialResult]] = {}

    def add(self, sample: TrialResult, way: Way, lowers: bool) -> None:
        """Files a sample. `lowers`: a size that does not fit lowers the ceiling (not so in a
        context that is only tried).
        """
        self.samples.append(sample)
        if self._fits(sample):
            self._fitting.setdefault(way, []).append(sample)
        elif (
            sample.outcome in OUT_OF_MEMORY or sample.outcome is Outcome.COMPLETED
        ):  # completed, with its peak over the budget
            if lowers:
                self._lower(way.size - 1)
        elif sample.outcome is not Outcome.INTERRUPTED:
            self.dead.add(way)
            self._fitting.pop(way, None)

    def _lower(self, ceiling: int) -> None:
        """No larger size is named from now on, whatever earlier runs of it showed."""
        self.ceiling = min(self.ceiling, ceiling)
        for way in [way for way in self._fitting if way.size > self.ceiling]:
            del self._fitting[way]

    def usable(self, way: Way) -> bool:
        return 1 <= way.size <= self.ceiling and way not in self.dead

    def fitting(self, context: Context | None = None) -> list[TrialResult]:
        """Runs that ended within the budget, of one context or of all."""
        return [
            run
            for way, runs in self._fitting.items()
            if context in (None, way.context)
            for run in runs
        ]

    def at(self, way: Way) -> list[TrialResult]:
        return self._fitting.get(way, [])

    @property
    def ways(self) -> list[Way]:
        """That ran within the budget."""
        return list(self._fitting)

    def rates(self, way: Way) -> tuple[float, ...]:
        """Samples per second of the runs that have one."""
        return tuple(run.samples_per_s for run in self.at(way) if run.samples_per_s)

    def middles(self, context: Context) -> dict[int, float]:
        """The median rate of each size of a context that has one."""
        ways = [way for way in self._fitting if way.context == context]
        return {way.size: statistics.median(rates) for way in ways if (rates := self.rates(way))}

    def gain(self, way: Way, other: Way) -> Gain | None:
        """By how much `way` is faster, by the runs of these two alone."""
        return gain(self.at(way), self.at(other))
