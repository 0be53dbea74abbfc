"""The problem of the search for settings, its result, and the sentences that say why."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from brimful.decide.speed.turns import Gain
from brimful.decide.tune.runs import Way
from brimful.units import counted
from brimful.values import Objective, Setting, SpeedEstimate, TrialResult

# glibc maps every tensor over 32 MiB anew and gives it back when it dies, and the kernel clears
# each page of it: on a CPU that costs more than the batch size does. With these (mallopt(3)) memory
# is kept and reused.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TOP_PAD_": str(256 * 1024**2),
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
}

MAX_TRIALS = 24
FACTOR = 4  # between the sizes of the first round


@dataclass(frozen=True)
class Request:
    """The next trial to run."""

    settings: dict[str, Setting]
    environment: dict[str, str]
    see_eval: bool = False  # it may be the one that confirms the plan


@dataclass(frozen=True)
class SpeedProblem:
    """What to decide."""

    largest_batch_size: int  # that fits by what the memory trials show, and obeys all other limits
    fits: Callable[[TrialResult], bool]  # whether a sample ran to its end within the budget
    # besides the batch size, with values that are in force
    settings: Mapping[str, Setting] = field(default_factory=dict)
    requested: int | None = None  # the user's own batch size
    environments: tuple[Mapping[str, str], ...] = ()  # to try against none
    worker_counts: tuple[int, ...] = ()  # to try for an open {num_workers}
    objective: Objective = Objective.FASTEST
    max_trials: int = MAX_TRIALS
    # what set the largest size: "dataset", "max_batch_size" or "budget"
    limited_by: str | None = None

    def __post_init__(self) -> None:
        if self.largest_batch_size < 1:
            raise ValueError(f"no batch size from 1 to {self.largest_batch_size}")
        if self.max_trials < 1:
            raise ValueError(f"max_trials is 1 or more, not {self.max_trials}")

    @property
    def expected_trials(self) -> int:
        """About how many trials the search takes, for the display."""
        if self.objective is not Objective.FASTEST:
            return 1
        # of the first round, and between them
        sizes = math.ceil(math.log(self.largest_batch_size + 1, FACTOR)) + 2
        pairs = len(self.environments) + len(self.worker_counts)
        return min(self.max_trials, min(6, sizes) + pairs + (3 if self.requested else 1))


@dataclass(frozen=True)
class SearchResult:
    """What was found. `chosen` is None where no run ended within the budget; `failure` says which
    trial stopped the search.
    """

    chosen: dict[str, Setting] | None
    environment: dict[str, str]
    why: dict[str, str]  # by setting
    speed: SpeedEstimate  # of the chosen context
    chosen_runs: tuple[TrialResult, ...]  # what was chosen
    # the user's own settings; () where they were not given or did not fit
    own_runs: tuple[TrialResult, ...]
    # of the choice over the user's own settings; None where it is these, or nothing is known
    gain: Gain | None
    failure: TrialResult | None = None


class Top(StrEnum):
    """What ended the way up."""

    FLAT = "flat"  # larger sizes were run and brought nothing
    CEILING = "ceiling"  # the largest size that the limits, or the memory trials, allow
    MEMORY = "memory"  # the next one was run and did not fit
    FAILED = "failed"  # at the next one the script raised an error
    SHORT = "short"  # at the next one the script ended before a speed was seen
    TRIALS = "trials"  # no trials were left


_LIMITS = {
    "dataset": "{size:,} samples are all that the training data gives in an epoch",
    "max_batch_size": "{size:,} is the maximum that you gave (--max-batch-size)",
    "budget": "by its memory trials, no size above {size:,} is sure to be within the budget",
}


def top_sentence(top: Top | None, size: int, limited_by: str | None, trials: int) -> str | None:
    """Why the search tried nothing above `size`, the largest that it may name; None where larger
    ones brought nothing.

    `limited_by`: what set the ceiling ("dataset", "max_batch_size" or "budget").
    """
    sentences = {
        Top.CEILING: _LIMITS.get(limited_by or "budget", _LIMITS["budget"]).format(size=size),
        Top.MEMORY: f"what is larger than {size:,} was not within the budget",
        Top.FAILED: f"above {size:,} the script raised an error",
        Top.SHORT: f"above {size:,} an epoch has too few steps to show a speed",
        Top.TRIALS: f"nothing above {size:,} was tried: {trials} trials are the most that a search "
        "makes",
    }
    return sentences.get(top) if top is not None else None


def gain_text(gain: Gain) -> str:
    """ "+12% samples/s [+4%, +21%], 2 turns side by side"."""
    return f"{gain.middle:+.0%} samples/s [{gain.low:+.0%}, {gain.high:+.0%}], {turns_text(gain)}"


def unclear_text(way: Way, gain: Gain) -> str:
    """Why a way to train that looked faster than the user's own is not named."""
    was = "was not clearly faster beside it"
    if gain.low > 0 and gain.loaded and gain.turns == 1:
        was = "was faster beside it, in one turn while others used the machine"
    return f"{way_text(way)} {was}: {gain_text(gain)}"


def turns_text(gain: Gain) -> str:
    """ "2 turns side by side"."""
    return f"{counted(gain.turns, 'turn')} side by side"


def way_text(way: Way) -> str:
    """ "batch size 128 with MALLOC_MMAP_MAX_"."""
    names = [f"{name} {value}" for name, value in way.context.settings if name == "num_workers"]
    more = [*names, *(name for name, _ in way.context.environment)]
    return f"batch size {way.size:,}" + (f" with {', '.join(more)}" if more else "")
