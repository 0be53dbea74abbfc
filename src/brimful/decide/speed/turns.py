"""How much faster one way to train is than another, by their own runs alone: what other settings
showed says nothing of it.

Runs that were made by turns (A B A B) are compared turn by turn, so that a machine that gets slower
meanwhile slows both.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brimful.decide.speed.measured import TOLERANCE, step_spread
from brimful.values import TrialResult

# other processes that take more than this share of the cores are seen in a trial's times
BUSY = 0.1
# Assumed, and checked by `bench/tune_regret.py`: by how much two trials of the same settings differ
# where nothing else runs (processes start anew, memory lies elsewhere), and what each share of the
# cores that others take adds to that.
_QUIET, _OF_LOAD = 0.02, 0.1
# so many turns' worth: what is expected of the spread, beside what the turns show
_EXPECTED_WEIGHT = 3
_Z95 = 1.96


@dataclass(frozen=True)
class Gain:
    """By how much one is faster than the other: 0.1 is 10 %, with its 95 % interval."""

    middle: float
    low: float
    high: float
    turns: int
    loaded: bool  # others took a part of the machine in one of these runs

    @property
    def is_clear(self) -> bool:
        """By more than the tolerance, and by more than its noise; where others use the machine, in
        more than one turn.
        """
        return self.middle > TOLERANCE and self.low > 0 and (self.turns > 1 or not self.loaded)


def gain(runs_of_one: Sequence[TrialResult], runs_of_other: Sequence[TrialResult]) -> Gain | None:
    """Of the first runs over the others, each in order, the latest side by side; None where one of
    them has no speed.
    """
    runs = ([run for run in runs if run.samples_per_s] for runs in (runs_of_one, runs_of_other))
    turns = list(zip(*map(reversed, runs), strict=False))
    if not turns:
        return None
    # of the ratio of two runs, by the steps of each and by what else ran
    expected = statistics.fmean(
        sum(
            _QUIET**2 + (step_spread(run.step_s) or 0.0) ** 2 + (_OF_LOAD * _load(run)) ** 2
            for run in turn
        )
        for turn in turns
    )
    interval = interval_of([_log_ratio(*turn) for turn in turns], math.sqrt(expected))
    return Gain(
        math.expm1(interval.middle),
        math.expm1(interval.low),
        math.expm1(interval.high),
        len(turns),
        any(_load(run) for turn in turns for run in turn),
    )


class Interval(NamedTuple):
    """Of the logarithm of a ratio: the median of some turns and its 95 % interval; `spread`: the
    standard deviation of one turn.
    """

    middle: float
    low: float
    high: float
    spread: float


def interval_of(logs: Sequence[float], expected: float) -> Interval:
    """By the turns' own spread and the `expected` one, which weighs as much as three of them: of
    two or three turns alone nobody knows their spread.
    """
    squares = sum((log - statistics.fmean(logs)) ** 2 for log in logs)
    spread = math.sqrt(
        (_EXPECTED_WEIGHT * expected**2 + squares) / (_EXPECTED_WEIGHT + len(logs) - 1)
    )
    middle, half = statistics.median(logs), _Z95 * spread / math.sqrt(len(logs))
    return Interval(middle, middle - half, middle + half, spread)


def _log_ratio(run: TrialResult, other: TrialResult) -> float:
    """By wall time; where others took a part of the machine, a difference counts as far as
    processor time shows it too. Not so
    of another number of loader workers: they read beside the training, whose own processor time
    stays as it is."""
    wall = math.log((run.samples_per_s or 1.0) / (other.samples_per_s or 1.0))
    workers, other_workers = (each.trial.settings.get("num_workers") for each in (run, other))
    if workers != other_workers or not (
        run.samples_per_cpu_s and other.samples_per_cpu_s and (_load(run) or _load(other))
    ):
        return wall
    processor = math.log(run.samples_per_cpu_s / other.samples_per_cpu_s)
    return min(wall, processor, key=abs) if wall * processor > 0 else 0.0


def _load(run: TrialResult) -> float:
    share = run.others_share or 0.0
    return share if share > BUSY else 0.0
