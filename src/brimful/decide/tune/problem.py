"""The problem of the search for settings, what its trials have shown so far, its result, and the
sentences that say why.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from brimful.decide.loaders_seen import main_loader
from brimful.decide.speed.turns import Gain, gain
from brimful.outcomes import OUT_OF_MEMORY
from brimful.units import counted, format_bytes
from brimful.values import Objective, Outcome, Setting, SpeedEstimate, TrialResult

MAX_TRIALS = 24
FACTOR = 4  # between the sizes of the first round
# no other size can do better, unless one has done already
HOPELESS = Outcome.PROBE_NOT_LOADED, Outcome.UNSUPPORTED


Others = tuple[tuple[str, Setting], ...]  # all settings of a run besides its batch size


@dataclass(frozen=True)
class Candidate:
    """Settings that may be chosen, all of them."""

    others: Others
    size: int

    @property
    def settings(self) -> dict[str, Setting]:
        return {"batch_size": self.size} | dict(self.others)


class Runs:
    """Runs by their settings. `ceiling` is the largest size that may still fit."""

    def __init__(self, ceiling: int, fits: Callable[[TrialResult], bool]) -> None:
        self.ceiling = ceiling
        self.samples: list[TrialResult] = []  # every one, in order
        self.dead: set[Candidate] = (
            set()
        )  # those that crash, take too long, or leave no whole batch
        self._fits = fits
        self._fitting: dict[Candidate, list[TrialResult]] = {}

    def add(self, sample: TrialResult, candidate: Candidate, lowers: bool) -> None:
        """Files a sample. `lowers`: a size that does not fit lowers the ceiling (with others that
        are only tried, it is dead).
        """
        self.samples.append(sample)
        if self._fits(sample):
            self._fitting.setdefault(candidate, []).append(sample)
        elif lowers and (sample.outcome in OUT_OF_MEMORY or sample.outcome is Outcome.COMPLETED):
            # completed, with its peak over the budget: no larger size is named from now on,
            # whatever earlier runs of it showed
            self.ceiling = min(self.ceiling, candidate.size - 1)
            for other in [other for other in self._fitting if other.size > self.ceiling]:
                del self._fitting[other]
        elif sample.outcome is not Outcome.INTERRUPTED:
            self.dead.add(candidate)
            self._fitting.pop(candidate, None)

    def usable(self, candidate: Candidate) -> bool:
        return 1 <= candidate.size <= self.ceiling and candidate not in self.dead

    def fitting(self, others: Others | None = None) -> list[TrialResult]:
        """Runs that ended within the budget, with one set of other settings or with all."""
        return [
            run
            for candidate, runs in self._fitting.items()
            if others in (None, candidate.others)
            for run in runs
        ]

    def at(self, candidate: Candidate) -> list[TrialResult]:
        return self._fitting.get(candidate, [])

    @property
    def candidates(self) -> list[Candidate]:
        """That ran within the budget."""
        return list(self._fitting)

    def rates(self, candidate: Candidate) -> tuple[float, ...]:
        """Samples per second of the runs that have one."""
        return tuple(run.samples_per_s for run in self.at(candidate) if run.samples_per_s)

    def middles(self, others: Others) -> dict[int, float]:
        """The median rate of each size with these other settings that has one."""
        candidates = [candidate for candidate in self._fitting if candidate.others == others]
        return {
            candidate.size: statistics.median(rates)
            for candidate in candidates
            if (rates := self.rates(candidate))
        }

    def turn(self, candidate: Candidate, other: Candidate) -> Candidate:
        """Which of the two runs next."""
        counts = len(self.rates(candidate)), len(self.rates(other))
        return candidate if counts[0] <= counts[1] else other

    def gain(self, candidate: Candidate, other: Candidate) -> Gain | None:
        """By how much the candidate is better, by the runs of these two alone."""
        return gain(self.at(candidate), self.at(other))


@dataclass(frozen=True)
class Request:
    """The next trial to run."""

    candidate: Candidate
    see_eval: bool = False  # it may be the one that confirms the plan
    verifies: bool = False  # with the loader's own batches, for as long as reserved memory rises

    @property
    def settings(self) -> dict[str, Setting]:
        return self.candidate.settings


@dataclass(frozen=True)
class SpeedProblem:
    largest_batch_size: int  # that fits by what the memory trials show, and obeys all other limits
    fits: Callable[[TrialResult], bool]  # whether a sample ran to its end within the budget
    # besides the batch size, with values that are in force
    settings: Mapping[str, Setting] = field(default_factory=dict)
    requested: int | None = None  # the user's own batch size
    worker_counts: tuple[int, ...] = ()  # to try for an open {num_workers}
    objective: Objective = Objective.THROUGHPUT
    max_trials: int = MAX_TRIALS
    # what set the largest size: "dataset", "max_batch_size" or "budget"
    limited_by: str | None = None
    # Whether trials so far have shown that batches are uneven, on a device that reserves memory.
    is_uneven: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.largest_batch_size < 1:
            raise ValueError(f"no batch size from 1 to {self.largest_batch_size}")
        if self.max_trials < 1:
            raise ValueError(f"max_trials is 1 or more, not {self.max_trials}")

    @property
    def expected_trials(self) -> int:
        """About how many trials the search takes, for the display."""
        if self.objective is Objective.LARGEST:
            return 1
        # of the first round, and between them
        sizes = math.ceil(math.log(self.largest_batch_size + 1, FACTOR)) + 2
        counts = len(self.worker_counts)
        return min(self.max_trials, min(6, sizes) + counts + (3 if self.requested else 1))


@dataclass(frozen=True)
class SearchResult:
    """What was found. `chosen` is None where no run ended within the budget; `failure` says which
    trial stopped the search.
    """

    chosen: dict[str, Setting] | None
    why: dict[str, str]  # by setting
    speed: SpeedEstimate  # at all sizes, with the chosen other settings
    chosen_runs: tuple[TrialResult, ...]  # what was chosen
    # the user's own settings; () where they were not given or did not fit
    own_runs: tuple[TrialResult, ...]
    # of the choice over the user's own settings; None where it is these, or nothing is known
    gain: Gain | None
    failure: TrialResult | None = None
    verified: TrialResult | None = None  # the choice, with batches of its own order


# What ended the way up: the next size was run and did not fit, the script raised an error at it, or
# ended before a speed was seen; no trials were left; or the limits, or the memory trials, allow no
# larger size.
Top = Literal["memory", "failed", "short", "trials", "ceiling"]
_LIMITS = {
    "dataset": "{size:,} samples are all that the training data gives in an epoch",
    "max_batch_size": "{size:,} is the maximum that you gave (--max-batch-size)",
    "loader": "{size:,} is the largest batch that the script's loader makes",
    "budget": "by its memory trials, no size above {size:,} is sure to be within the budget",
}


def top_sentence(top: Top | None, size: int, limited_by: str | None, trials: int) -> str | None:
    """Why the search tried nothing above `size`, the largest that it may name; None where larger
    ones brought nothing.

    `limited_by`: what set the ceiling, as in `MemoryEstimate`.
    """
    limit = _LIMITS.get(limited_by or "budget")
    sentences = {
        "ceiling": limit.format(size=size)
        if limit is not None
        else f"{size:,} is the largest that ran, limited by {limited_by}",
        "memory": f"what is larger than {size:,} was not within the budget",
        "failed": f"above {size:,} the script raised an error",
        "short": f"above {size:,} an epoch has too few steps to show a speed",
        "trials": f"nothing above {size:,} was tried: {trials} trials are the most that a search "
        "makes",
    }
    return None if top is None else sentences[top]


def verified_text(run: TrialResult) -> str:
    """ "verified with 120 batches of its own order: 17.2 GiB reserved"."""
    if run.outcome is not Outcome.COMPLETED:
        return f"not verified with batches of its own order: {run.outcome.value.replace('_', ' ')}"
    loader, reserved = main_loader(run), run.peak.reserved_bytes if run.peak else None
    count = counted(loader.batches_seen if loader else 0, "batch", "batches")
    needs = f": {format_bytes(reserved)} reserved" if reserved else ""
    return f"verified with {count} of its own order{needs}"


def gain_text(gain: Gain) -> str:
    """ "+12% samples/s [+4%, +21%], 2 alternating runs"."""
    interval = f"[{gain.low:+.0%}, {gain.high:+.0%}]"
    return f"{gain.middle:+.0%} samples/s {interval}, {turns_text(gain)}"


def unclear_text(candidate: Candidate, gain: Gain) -> str:
    """Why a candidate that looked faster than the user's own is not named."""
    was = "was not clearly faster beside it"
    if gain.low > 0 and gain.loaded and gain.turns == 1:
        was = "was faster beside it, in one turn while others used the machine"
    return f"{candidate_text(candidate)} {was}: {gain_text(gain)}"


def turns_text(gain: Gain) -> str:
    """ "2 alternating runs"."""
    return counted(gain.turns, "alternating run")


def candidate_text(candidate: Candidate) -> str:
    """ "batch size 128 with num_workers 2"."""
    workers = dict(candidate.others).get("num_workers")
    more = "" if workers is None else f" with num_workers {workers}"
    return f"batch size {candidate.size:,}{more}"
