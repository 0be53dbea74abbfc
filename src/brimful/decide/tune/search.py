"""The search for settings on a device that has a clock: a generator of trials to run, without
running any.

In order: the user's own settings; other numbers of loader workers; batch sizes four times apart,
then between the best of them; those that may still be the best again, fewer each time; and last the
choice and the user's own settings by turns. It is named only if it is clearly faster there. A
comparison of two goes on, by turns, while a decision hangs on it. Only out of memory, or a peak
over the budget, makes the search go smaller; sizes at which the command crashes or takes too long
are left out.
"""

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace

from brimful.decide.speed.measured import TOLERANCE, speed_estimate
from brimful.decide.speed.turns import Gain, gain
from brimful.decide.tune.objective import choose
from brimful.decide.tune.problem import (
    FACTOR,
    HOPELESS,
    MAX_TRIALS,
    Candidate,
    Others,
    Request,
    Runs,
    SearchResult,
    SpeedProblem,
    Top,
    gain_text,
    top_sentence,
    unclear_text,
    verified_text,
)
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import Objective, Outcome, TrialKind, TrialResult

TURNS = 2  # of two candidates, while it is not clear which is faster
LAST_TURNS = 4  # of the choice and the user's own settings
CHOICES = 2  # that are run against the user's own settings, one after the other
WORTH = 0.10  # a gain that is no larger than this at best is not worth more trials
PATIENCE = 3  # sizes at which the script fails before any has run to its end
CLOSE = 1.3  # neighbouring sizes nearer than this are not worth another one between them
SHRINK = 0.9  # after a size that did not fit, where nothing between is known


class _Stop(Exception):
    """The search cannot go on: no trials left, or one that ends everything."""

    def __init__(self, failure: TrialResult | None = None) -> None:
        self.failure = failure


_Steps = Generator[Request, TrialResult, None]


class Search:
    """`steps` yields the trials to run; `result` is what is known at any time."""

    def __init__(self, problem: SpeedProblem) -> None:
        self.problem = problem
        self.runs = Runs(problem.largest_batch_size, problem.fits)
        self._home: Others = tuple(problem.settings.items())  # the user's own
        self._own = (
            Candidate(self._home, problem.requested) if problem.requested is not None else None
        )
        self._others = self._home
        self._why: dict[str, str] = {}
        self._top: Top | None = None
        # the choice that was clearly faster beside the user's own settings
        self._settled: Candidate | None = None
        self._refuted: dict[Candidate, Gain] = {}
        self._verified: dict[Candidate, TrialResult] = {}
        self._failure: TrialResult | None = None
        self._most_trials = max(
            1, problem.max_trials - (2 * CHOICES if self._own and problem.max_trials > 8 else 0)
        )

    def steps(self) -> _Steps:
        parts = (self._fastest, self._against_own, self._confirm)
        if self.problem.objective is Objective.LARGEST:
            parts = (self._settle,)
        for part in (*parts, self._verify):
            try:
                yield from part()
            except _Stop as stop:
                self._failure = stop.failure
                if stop.failure is not None:
                    return

    def learn(self, results: Iterable[TrialResult]) -> None:
        """Files trials of memory with the user's own other settings, short ones, where no longer
        one is known."""
        for result in results:
            candidate = Candidate(self._home, int(result.trial.settings.get("batch_size", 0)))
            if result.trial.kind is TrialKind.MEMORY and not self.runs.rates(candidate):
                self.runs.add(result, candidate, lowers=True)

    def result(self) -> SearchResult:
        candidate, why = self._named()
        others = candidate.others if candidate else self._home
        users_own = self._own if self._own is not None and self.runs.rates(self._own) else None
        verified = self._verified.get(candidate) if candidate else None
        why = f"{why}; {verified_text(verified)}" if verified else why
        return SearchResult(
            chosen=candidate.settings if candidate else None,
            why=(self._why if others == self._others else {})
            | ({"batch_size": why} if candidate else {}),
            speed=speed_estimate(self.runs.fitting(others)),
            chosen_runs=tuple(self.runs.at(candidate)) if candidate else (),
            own_runs=tuple(self.runs.at(users_own)) if users_own else (),
            gain=gain(self.runs.at(candidate), self.runs.at(users_own))
            if candidate and users_own and candidate != users_own
            else None,
            failure=self._failure,
            verified=verified,
        )

    def _fastest(self) -> _Steps:
        # where to begin: the user's own size, else the middle (in octaves) of what fits
        start = 0
        if self._own is not None and self.runs.usable(self._own):
            yield from self._ask(self._own)
            start = self._own.size if self.runs.rates(self._own) else 0
        start = start or max(1, math.isqrt(self.runs.ceiling))
        yield from self._worker_counts(start)
        yield from self._sizes(start)
        yield from self._between()
        yield from self._rounds()

    def _ask(
        self, candidate: Candidate, see_eval: bool = False
    ) -> Generator[Request, TrialResult, None]:
        """Runs one trial and files its result. Raises _Stop where the search has to end."""
        runs = self.runs
        if len(runs.samples) >= self._most_trials:
            raise _Stop
        sample = yield Request(candidate.settings, see_eval)
        runs.add(sample, candidate, lowers=candidate.others in (self._home, self._others))
        hopeless = (sample.outcome in HOPELESS or len(runs.dead) >= PATIENCE) and not runs.fitting()
        if sample.outcome is Outcome.INTERRUPTED or hopeless or runs.ceiling < 1:
            raise _Stop(sample)

    def _settle(self) -> _Steps:
        """LARGEST: one size, smaller and smaller until it fits."""
        size = self.runs.ceiling
        while True:
            before = self.runs.ceiling
            yield from self._ask(self._at(size), see_eval=True)
            if self.runs.at(self._at(size)):
                self._top = self._at_the_ceiling() if size >= self.runs.ceiling else None
                return
            if self.runs.ceiling == before:  # it failed for another reason than memory
                raise _Stop(self.runs.samples[-1])
            size = max(1, min(self.runs.ceiling, int(size * SHRINK)))

    # --- what is named ---

    def _named(self) -> tuple[Candidate | None, str]:
        """The choice with its reason; the user's own settings where nothing is clearly faster."""
        candidate, why = self._choice()
        users_own, problem = self._own, self.problem
        if (
            candidate is not None
            and candidate != users_own
            and users_own is not None
            and self.runs.rates(users_own)
        ):
            gain = None
            if problem.objective is Objective.THROUGHPUT:
                gain = self.runs.gain(candidate, users_own)
            if gain is not None and not gain.is_clear:
                self._refuted.setdefault(candidate, gain)
                candidate, why = users_own, self._kept()
        largest = (
            max(self.runs.middles(candidate.others), default=self.runs.ceiling) if candidate else 0
        )
        top = top_sentence(self._top, largest, problem.limited_by, problem.max_trials)
        return candidate, f"{why}; {top}" if top else why

    def _choice(self) -> tuple[Candidate | None, str]:
        """What ran best so far, of what was not refuted: the smallest size within the tolerance of
        the best, and, where the user's own settings ran, of those that are more than the tolerance
        faster."""
        problem, users_own = self.problem, self._own
        others = self._others if self.runs.fitting(self._others) else self._home
        choice = choose(problem.objective, self.runs.fitting(others))
        if choice is None:
            return None, ""
        best_ran, why = Candidate(others, choice[0]), choice[1]
        faster = "one of the sizes that ran best, clearly faster than your own settings beside it"
        if self._settled is not None and self.runs.rates(self._settled):
            return self._settled, why if self._settled == best_ran else faster
        largest = problem.objective is Objective.LARGEST
        if largest or users_own is None or not self.runs.rates(users_own):
            return best_ran, why
        middles = {
            size: rate
            for size, rate in self.runs.middles(others).items()
            if Candidate(others, size) not in self._refuted
        }
        best = max(middles.values(), default=0.0)
        for size in sorted(
            size for size, rate in middles.items() if rate >= best * (1 - TOLERANCE)
        ):
            candidate = Candidate(others, size)
            gain = self.runs.gain(candidate, users_own)
            if gain is not None and gain.middle > TOLERANCE:
                return candidate, why if candidate == best_ran else faster
        return users_own, self._kept()

    def _kept(self) -> str:
        """Why the user's own settings stay."""
        unclear = dict(self._refuted)
        if (
            not unclear and self._own is not None
        ):  # what was tried once, or not at the size that is named
            others = [candidate for candidate in self.runs.candidates if candidate != self._own]
            gains = [(candidate, self.runs.gain(candidate, self._own)) for candidate in others]
            faster = [(c, gain) for c, gain in gains if gain and gain.middle > TOLERANCE]
            unclear = dict(sorted(faster, key=lambda pair: -pair[1].middle)[:1])
        if not unclear:
            return f"your own: nothing that was run is more than {TOLERANCE:.0%} faster"
        return "your own: " + "; ".join(
            unclear_text(candidate, gain) for candidate, gain in unclear.items()
        )

    # --- the candidates that are compared ---

    def _at(self, size: int) -> Candidate:
        return Candidate(self._others, size)

    def _worker_counts(self, start: int) -> _Steps:
        for count in self.problem.worker_counts:
            runs = self.runs.at(self._at(start))
            shares = [run.loading_share for run in runs if run.loading_share is not None]
            if shares and max(shares) < WORTH:
                self._why.setdefault("num_workers", "loading takes no time worth saving")
                return
            others = dict(self._others) | {"num_workers": count}
            present, other = self._at(start), Candidate(tuple(others.items()), start)
            if not (yield from self._adopt(other)):
                gain = self.runs.gain(other, present)
                self._why.setdefault(
                    "num_workers",
                    f"{count} brought {gain_text(gain)}" if gain else f"{count} did not run",
                )

    def _adopt(self, other: Candidate) -> Generator[Request, TrialResult, bool]:
        """Goes on with another number of workers if it is clearly faster."""

        def decided(gain: Gain) -> bool:
            return gain.is_clear or gain.high <= WORTH

        gain = yield from self._by_turns(other, self._at(other.size), decided, TURNS)
        if gain is None or not gain.is_clear:
            return False
        self._others = other.others
        self._why["num_workers"] = gain_text(gain)
        return True

    def _by_turns(
        self,
        first: Candidate,
        second: Candidate,
        decided: Callable[[Gain], bool],
        turns: int,
        see_eval: bool = False,
    ) -> Generator[Request, TrialResult, Gain | None]:
        """The gain of the first over the second, which run by turns until it is `decided`, or both
        ran so often. None where one of them does not run. With `see_eval` they run at least once
        more."""
        fresh = see_eval
        while True:
            gain = self.runs.gain(first, second)
            count = gain.turns if gain is not None else 0
            if gain is not None and not fresh and (decided(gain) or count >= turns):
                return gain
            for candidate in (second, first):
                if fresh or len(self.runs.rates(candidate)) <= count:
                    if self.runs.usable(candidate):
                        yield from self._ask(candidate, see_eval)
                    if not self.runs.rates(candidate):
                        return None
            fresh = False

    def _sizes(self, start: int) -> _Steps:
        """Up in large steps until they bring nothing, down until it is clearly slower."""
        size = min(start, self.runs.ceiling)
        yield from self._first(size)
        yield from self._climb(size)
        size = min(start, self.runs.ceiling)
        while size > 1:
            size = max(1, size // FACTOR)
            yield from self._first(size)
            middles = self.runs.middles(self._others)
            if size in middles and middles[size] < max(middles.values()) * (1 - 2 * TOLERANCE):
                return

    def _climb(self, size: int) -> _Steps:
        """Until a size brings nothing over all smaller ones (where others use the machine: two), or
        something keeps it from going on."""
        self._top = "trials"  # until it has ended otherwise
        flat, larger = False, min(FACTOR * size, self.runs.ceiling)
        while not flat and larger > size:
            yield from self._first(larger)
            if (
                larger > self.runs.ceiling
            ):  # it did not fit: half way (in octaves) up to it, until that is close
                larger = math.isqrt(size * larger)
                if larger < CLOSE * size:
                    break
                continue
            if not self.runs.at(self._at(larger)):
                self._top = "failed"  # it crashed or took too long, and so would a larger one
                return
            if self.runs.rates(self._at(size)) and not self.runs.rates(self._at(larger)):
                self._top = "short"  # as a larger one would be
                return
            flat = self._is_flat(larger)
            size, larger = larger, min(FACTOR * larger, self.runs.ceiling)
        self._top = None if flat else self._at_the_ceiling()

    def _is_flat(self, size: int) -> bool:
        """Whether it, and where others use the machine the one before it too, is no faster than a
        smaller one."""
        middles = sorted(self.runs.middles(self._others).items())
        rates = [rate for smaller, rate in middles if smaller <= size]
        gain = self.runs.gain(self._at(size), self._at(middles[0][0]))
        count = 2 if gain is not None and gain.loaded else 1
        return len(rates) > count and max(rates[-count:]) <= max(rates[:-count]) * (1 + TOLERANCE)

    def _at_the_ceiling(self) -> Top:
        return "ceiling" if self.runs.ceiling == self.problem.largest_batch_size else "memory"

    def _between(self) -> _Steps:
        """Sizes between: where the best lies lower than its larger neighbour, and where the knee
        does."""
        middles = self.runs.middles(self._others)
        best = max(middles, key=lambda size: middles[size], default=None)
        middle = _middle(
            best, min((size for size in middles if best and size > best), default=None)
        )
        if middle is not None:
            yield from self._first(middle)
        for _ in range(2):
            speed = speed_estimate(self.runs.fitting(self._others))
            knee = speed.knee_batch_size
            middle = _middle(
                max(
                    (
                        point.batch_size
                        for point in speed.points
                        if knee and point.batch_size < knee
                    ),
                    default=None,
                ),
                knee,
            )
            if middle is None:
                return
            yield from self._first(middle)

    def _rounds(self) -> _Steps:
        """The sizes that may be worth more than the one that would be named run again by turns: the
        better half of them, and half of these once more."""
        middles = self.runs.middles(self._others)
        sizes = sorted(middles, key=lambda size: -middles[size])
        for _ in range(TURNS - 1):
            middles = self.runs.middles(self._others)
            speed = speed_estimate(self.runs.fitting(self._others))
            named = speed.knee_batch_size
            if named is None:
                return
            gains = {size: self.runs.gain(self._at(size), self._at(named)) for size in sizes}
            worth = [size for size, gain in gains.items() if gain and gain.high > WORTH]
            sizes = [size for size in sizes if size in middles and size in (named, *worth)]
            if len(sizes) < 2:
                return
            sizes = sorted(sizes, key=lambda size: -middles[size])[: max(2, len(sizes) // 2)]
            for size in dict.fromkeys([*sizes, named]):
                if self.runs.usable(self._at(size)):
                    yield from self._ask(self._at(size))

    def _against_own(self) -> _Steps:
        """The choice, and where it is not clearly faster another one, by turns with the user's own
        settings."""

        def decided(gain: Gain) -> bool:
            return gain.is_clear or gain.high <= TOLERANCE or (gain.turns > 1 and gain.middle <= 0)

        self._most_trials = self.problem.max_trials
        for _ in range(CHOICES):
            candidate, users_own = self._choice()[0], self._own
            if (
                candidate is None
                or users_own is None
                or candidate == users_own
                or not self.runs.rates(users_own)
            ):
                return
            gain = yield from self._by_turns(
                candidate, users_own, decided, LAST_TURNS, see_eval=True
            )
            if gain is not None and gain.is_clear:
                self._settled = candidate
                return
            if gain is not None:
                self._refuted[candidate] = gain

    def _confirm(self) -> _Steps:
        """What is named has run with its evaluation; where that does not fit, something else is
        named."""
        while True:
            candidate = self._named()[0]
            if candidate is None or any(run.trial.see_eval for run in self.runs.at(candidate)):
                return
            yield from self._ask(candidate, see_eval=True)

    def _verify(self) -> _Steps:
        """Where batches are uneven, what is named has run with those of its own order; where they
        take more than the budget, the next smaller size is run and what is named then."""
        self._most_trials = len(self.runs.samples) + MAX_TRIALS
        while self.problem.is_uneven():
            candidate = self._named()[0]
            if candidate is None or candidate in self._verified:
                return
            run = yield Request(candidate.settings, verifies=True)
            too_much = run.outcome is Outcome.COMPLETED and not self.problem.fits(run)
            if run.outcome not in OUT_OF_MEMORY and not too_much:
                self._verified[candidate] = run
                return
            self.runs.add(run, candidate, lowers=True)
            self._top = "memory"
            smaller = max(1, min(self.runs.ceiling, int(candidate.size * SHRINK)))
            yield from self._ask(replace(candidate, size=smaller), see_eval=True)

    def _first(self, size: int) -> _Steps:
        """One run at a size that has none yet."""
        candidate = self._at(size)
        if self.runs.usable(candidate) and not self.runs.at(candidate):
            yield from self._ask(candidate)


def _middle(low: int | None, high: int | None) -> int | None:
    """The geometric middle of two sizes, a multiple of 8 from 32 on; None where they are close."""
    if low is None or high is None or high < CLOSE * low:
        return None
    middle = math.isqrt(low * high)
    middle = round(middle / 8) * 8 if middle >= 32 else middle
    return middle if low < middle < high else None
