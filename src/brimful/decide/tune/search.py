"""The search for settings on a device that has a clock: a generator of trials to run, without running any.

In order: the user's own settings; other ways to run them (the host allocator's environment, loader workers), in pairs side by
side; batch sizes, by doubling and halving, then between them; repeats of those that decide; the user's own once more. Only out
of memory, or a peak over the budget, makes it go smaller; sizes at which the command crashes or takes too long are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from brimful.decide.speed.measured import TOLERANCE, clearly_above, speed_estimate
from brimful.decide.tune.objective import choose
from brimful.decide.tune.runs import HOPELESS, Context, Runs
from brimful.values import Objective, Outcome, Setting, SpeedEstimate, TrialResult

# glibc maps every tensor over 32 MiB anew and gives it back when it dies, and the kernel clears each page of it: on a CPU
# that costs more than the batch size does. With these (mallopt(3)) memory is kept and reused.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": str(256 * 1024**2), "MALLOC_TRIM_THRESHOLD_": "100000000000"}

MAX_TRIALS = 24
REPEATS = 3  # runs of the sizes that decide
PATIENCE = 3  # sizes at which the script fails before any has run to its end
FLAT = 2  # doublings without a gain before the climb ends
CLOSE = 1.3  # neighbouring sizes nearer than this are not worth another one between them
SHRINK = 0.9  # after a size that did not fit, where nothing between is known


@dataclass(frozen=True)
class Request:
    """The next trial to run."""

    settings: dict[str, Setting]
    environment: dict[str, str]


@dataclass(frozen=True)
class SpeedProblem:
    """What to decide."""

    largest_batch_size: int  # that fits by what the memory trials show, and obeys all other limits
    fits: Callable[[TrialResult], bool]  # whether a sample ran to its end within the budget
    settings: Mapping[str, Setting] = field(default_factory=dict)  # besides the batch size, with values that are in force
    requested: int | None = None  # the user's own batch size
    environments: tuple[Mapping[str, str], ...] = ()  # to try against none
    worker_counts: tuple[int, ...] = ()  # to try for an open {num_workers}
    objective: Objective = Objective.FASTEST
    max_trials: int = MAX_TRIALS
    limited_by: str | None = None  # what set the largest size: "dataset", "max_batch_size" or "budget"

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
        octaves = max(1, math.ceil(math.log2(self.largest_batch_size + 1)))
        sizes = min(6, octaves) + min(4, octaves) + 2 * (REPEATS - 1)  # by doubling, between them, once more
        pairs = 3 * (len(self.environments) + len(self.worker_counts))
        return min(self.max_trials, (2 if self.requested else 0) + pairs + sizes)


@dataclass(frozen=True)
class SearchResult:
    """What was found. `chosen` is None where no run ended within the budget; `failure` says which trial stopped the search."""

    chosen: dict[str, Setting] | None
    environment: dict[str, str]
    why: dict[str, str]  # by setting
    speed: SpeedEstimate  # of the chosen context
    chosen_rates: tuple[float, ...]  # samples per second of each run of what was chosen
    baseline_rates: tuple[float, ...]  # and of the user's own settings; () where they were not given or did not fit
    ceiling: int  # the largest batch size that may still fit
    failure: TrialResult | None = None


class Top(StrEnum):
    """What ended the way up."""

    FLAT = "flat"  # larger sizes were run and brought nothing
    CEILING = "ceiling"  # the largest size that the limits, or the memory trials, allow
    MEMORY = "memory"  # the next one was run and did not fit
    FAILED = "failed"  # at the next one the script raised an error
    TRIALS = "trials"  # no trials were left


_LIMITS = {
    "dataset": "{size:,} samples are all that the training data gives in an epoch",
    "max_batch_size": "{size:,} is the maximum that you gave (--max-batch-size)",
    "budget": "by its memory trials, no size above {size:,} is sure to be within the budget",
}


def top_sentence(top: Top | None, size: int, limited_by: str | None, trials: int) -> str | None:
    """Why the search tried nothing above `size`, the largest that it may name; None where larger ones brought nothing.

    `limited_by`: what set the ceiling ("dataset", "max_batch_size" or "budget").
    """
    sentences = {
        Top.CEILING: _LIMITS.get(limited_by or "budget", _LIMITS["budget"]).format(size=size),
        Top.MEMORY: f"what is larger than {size:,} was not within the budget",
        Top.FAILED: f"above {size:,} the script raised an error",
        Top.TRIALS: f"nothing above {size:,} was tried: {trials} trials are the most that a search makes",
    }
    return sentences.get(top) if top is not None else None


class _Stop(Exception):
    """The search cannot go on: no trials left, or one that ends everything."""

    def __init__(self, failure: TrialResult | None = None) -> None:
        self.failure = failure


_Steps = Generator[Request, TrialResult, None]


def search_settings(problem: SpeedProblem) -> Generator[Request, TrialResult, SearchResult]:
    """Yields trials to run, is sent what each showed, and returns what was found."""
    search = _Search(problem)
    failure = None
    try:
        yield from search.fastest() if problem.objective is Objective.FASTEST else search.settle()
    except _Stop as stop:
        failure = stop.failure
    return search.result(failure)


class _Search:
    def __init__(self, problem: SpeedProblem) -> None:
        self.problem = problem
        self.runs = Runs(problem.largest_batch_size, problem.fits)
        self._home = Context(tuple(problem.settings.items()))  # the user's own way
        self._context = self._home
        self._why: dict[str, str] = {}
        self._top: Top | None = None

    def result(self, failure: TrialResult | None) -> SearchResult:
        context = self._context if self.runs.fitting(self._context) else self._home
        choice = choose(self.problem.objective, self.runs.fitting(context), self.problem.requested)
        speed = speed_estimate(self.runs.fitting(context))
        largest = max((point.batch_size for point in speed.points), default=self.runs.ceiling)
        top = top_sentence(self._top, largest, self.problem.limited_by, self.problem.max_trials)
        return SearchResult(
            chosen={"batch_size": choice.batch_size} | dict(context.settings) if choice else None,
            environment=dict(context.environment),
            why=self._why | ({"batch_size": f"{choice.why}; {top}" if top else choice.why} if choice else {}),
            speed=speed,
            chosen_rates=self.runs.rates(context, choice.batch_size) if choice else (),
            baseline_rates=self.runs.rates(self._home, self.problem.requested or 0),
            ceiling=self.runs.ceiling,
            failure=failure,
        )

    def fastest(self) -> _Steps:
        yield from self._baseline()
        start = self._start()
        yield from self._contexts(start)
        yield from self._sizes(start)
        yield from self._between()
        yield from self._repeats()
        yield from self._baseline()

    def _ask(self, context: Context, size: int) -> Generator[Request, TrialResult, TrialResult]:
        """Runs one trial and files its result. Raises _Stop where the search has to end."""
        runs = self.runs
        if len(runs.samples) >= self.problem.max_trials:
            raise _Stop
        settings = {"batch_size": size} | dict(context.settings)
        sample = yield Request(settings, dict(context.environment))
        runs.add(sample, context, size, lowers=context in (self._home, self._context))
        hopeless = (sample.outcome in HOPELESS or len(runs.dead) >= PATIENCE) and not runs.fitting()
        if sample.outcome is Outcome.INTERRUPTED or hopeless or runs.ceiling < 1:
            raise _Stop(sample)
        return sample

    def _usable(self, size: int) -> bool:
        return 1 <= size <= self.runs.ceiling and (self._context, size) not in self.runs.dead

    def settle(self) -> _Steps:
        """LARGEST and FIT: one size, smaller and smaller until it fits."""
        problem = self.problem
        size = self.runs.ceiling
        if problem.objective is Objective.FIT and problem.requested is not None:
            size = max(1, min(size, problem.requested))
        while True:
            before = self.runs.ceiling
            yield from self._ask(self._context, size)
            if self.runs.at(self._context, size):
                self._top = self._at_the_ceiling() if size >= self.runs.ceiling else None
                return
            if self.runs.ceiling == before:  # it failed for another reason than memory
                raise _Stop(self.runs.samples[-1])
            size = max(1, min(self.runs.ceiling, int(size * SHRINK)))

    def _baseline(self) -> _Steps:
        """The user's own settings, run as they are, if they obey the limits."""
        size = self.problem.requested
        fits = size is not None and 1 <= size <= self.runs.ceiling
        if size is not None and fits and (self._home, size) not in self.runs.dead:
            yield from self._ask(self._home, size)

    def _start(self) -> int:
        """Where to begin: the user's own size, else the middle (in octaves) of what fits."""
        size = self.problem.requested
        if size is not None and self.runs.rates(self._home, size):
            return size
        return max(1, math.isqrt(self.runs.ceiling))

    def _contexts(self, start: int) -> _Steps:
        for environment in self.problem.environments:
            other = replace(self._context, environment=tuple(environment.items()))
            if not (yield from self._adopt(other, start, environment)):
                large = min(self.runs.ceiling, 8 * start)
                if large >= 4 * start:  # small tensors are not mapped, so it may help at larger sizes alone
                    yield from self._adopt(other, large, environment)
        for count in self.problem.worker_counts:
            if not self._loading_matters(start):
                self._why.setdefault("num_workers", "loading takes no time worth saving")
                return
            settings = dict(self._context.settings) | {"num_workers": count}
            yield from self._adopt(replace(self._context, settings=tuple(settings.items())), start, ["num_workers"])

    def _loading_matters(self, size: int) -> bool:
        shares = [run.loading_share for run in self.runs.at(self._context, size) if run.loading_share is not None]
        return not shares or max(shares) >= TOLERANCE

    def _adopt(self, other: Context, size: int, names: Iterable[str]) -> Generator[Request, TrialResult, bool]:
        """Goes on in the other context if it is clearly faster; `names` are what it changes."""
        gain = yield from self._compare(other, size)
        if gain is not None:
            self._context = other
            self._why |= dict.fromkeys(names, f"{gain:+.0%} samples/s, run side by side")
        return gain is not None

    def _compare(self, other: Context, size: int) -> Generator[Request, TrialResult, float | None]:
        """Runs the context in force and another one by turns. The gain of the other one, None if it is not clearly faster."""
        here = self._context
        for turn in range(2):
            for context in (here, other):
                if not self._usable(size):
                    return None
                if len(self.runs.rates(context, size)) > turn:
                    continue
                yield from self._ask(context, size)
                if not self.runs.rates(context, size):
                    return None
            if not clearly_above(self.runs.rates(other, size), self.runs.rates(here, size), self.runs.tolerance()):
                return None
        return (self.runs.middle(other, size) or 0.0) / (self.runs.middle(here, size) or 1.0) - 1

    def _sizes(self, start: int) -> _Steps:
        """Up by doubling until two doublings in a row bring nothing, down by halving until it is clearly slower."""
        start = min(start, self.runs.ceiling)
        yield from self._first(start)
        yield from self._climb(start)
        size = min(start, self.runs.ceiling)
        while size > 1:
            size = max(1, size // 2)
            yield from self._first(size)
            rate, best = self.runs.middle(self._context, size), self.runs.best(self._context)
            if rate and best and rate < best * (1 - 2 * self.runs.tolerance()):
                return

    def _climb(self, size: int) -> _Steps:
        """By doubling, until two in a row bring nothing over all smaller sizes, or something keeps it from going on."""
        self._top = Top.TRIALS  # until it has ended otherwise
        flat, larger = 0, min(2 * size, self.runs.ceiling)
        while flat < FLAT and larger > size:
            yield from self._first(larger)
            if larger > self.runs.ceiling:  # it did not fit: half way (in octaves) up to it, until that is close
                larger = math.isqrt(size * larger)
                if larger < CLOSE * size:
                    break
                continue
            if not self.runs.at(self._context, larger):
                self._top = Top.FAILED  # it crashed or took too long, and so would a larger one
                return
            # Noise decides what is named, and not how far the search goes; nor do larger sizes that ran before.
            best, rate = self.runs.best(self._context, below=larger), self.runs.middle(self._context, larger)
            flat = 0 if best is None or (rate or 0.0) > best * (1 + TOLERANCE) else flat + 1
            size, larger = larger, min(2 * larger, self.runs.ceiling)
        self._top = Top.FLAT if flat >= FLAT else self._at_the_ceiling()

    def _at_the_ceiling(self) -> Top:
        return Top.CEILING if self.runs.ceiling == self.problem.largest_batch_size else Top.MEMORY

    def _between(self) -> _Steps:
        """Sizes between: under the knee, for it may lie lower, and around the best, for there may be a better one."""
        for _ in range(3):
            knee, sizes = self._speed.knee_batch_size, [point.batch_size for point in self._speed.points]
            middle = _between(max((size for size in sizes if knee and size < knee), default=None), knee)
            if middle is None:
                break
            yield from self._first(middle)
        best, sizes = self._speed.best_batch_size, [point.batch_size for point in self._speed.points]
        middle = _between(best, min((size for size in sizes if best and size > best), default=None))
        if middle is not None:
            yield from self._first(middle)

    def _repeats(self) -> _Steps:
        """The best and the knee run again by turns, until each of them was run `REPEATS` times or the trials are used up."""
        reserve = 1 if self.problem.requested is not None else 0
        while len(self.runs.samples) < self.problem.max_trials - reserve:
            speed = self._speed
            deciding = [size for size in (speed.knee_batch_size, speed.best_batch_size) if size is not None]
            few = min(deciding, key=lambda size: len(self.runs.rates(self._context, size)), default=None)
            if few is None or len(self.runs.rates(self._context, few)) >= REPEATS:
                return
            yield from self._ask(self._context, few)

    @property
    def _speed(self) -> SpeedEstimate:
        return speed_estimate(self.runs.fitting(self._context))

    def _first(self, size: int) -> _Steps:
        """One run at a size that has none yet."""
        if self._usable(size) and not self.runs.at(self._context, size):
            yield from self._ask(self._context, size)


def _between(low: int | None, high: int | None) -> int | None:
    """The geometric middle of two sizes, a multiple of 8 from 32 on; None where they are close."""
    if low is None or high is None or high < CLOSE * low:
        return None
    middle = math.isqrt(low * high)
    middle = round(middle / 8) * 8 if middle >= 32 else middle
    return middle if low < middle < high else None
