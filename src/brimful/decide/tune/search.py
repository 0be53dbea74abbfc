"""The search for settings on a device that has a clock: a generator of trials to run, without
running any.

From the runs so far follows which trial comes next. In order: the user's own settings; other
numbers of loader workers; the ladder of batch sizes (`ladder`); the choice and the user's own
settings by turns, with their evaluation; and, where batches are uneven, the choice with those of
its own order. The choice is named only if it is clearly faster than the user's own. Only out of
memory, or a peak over the budget, makes the search go smaller; sizes at which the command crashes
or takes too long are left out.
"""

import math
from collections.abc import Generator, Iterable
from dataclasses import replace

from brimful.decide.speed.measured import TOLERANCE, speed_estimate
from brimful.decide.speed.turns import Gain
from brimful.decide.tune.ladder import TURNS, WORTH, Ladder
from brimful.decide.tune.objective import choose
from brimful.decide.tune.problem import (
    HOPELESS,
    MAX_TRIALS,
    Candidate,
    Others,
    Request,
    Runs,
    SearchResult,
    SpeedProblem,
    gain_text,
    top_sentence,
    unclear_text,
    verified_text,
)
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import Objective, Outcome, TrialKind, TrialResult

LAST_TURNS = 4  # of the choice and the user's own settings
CHOICES = 2  # that are run against the user's own settings, one after the other
PATIENCE = 3  # sizes at which the script fails before any has run to its end
SHRINK = 0.9  # after a size that did not fit, where nothing between is known


class Search:
    """`steps` yields the trials to run; `result` is what is known at any time."""

    def __init__(self, problem: SpeedProblem) -> None:
        self.problem = problem
        self.runs = Runs(problem.largest_batch_size, problem.fits)
        home: Others = tuple(problem.settings.items())
        self._home = home
        self._own = Candidate(home, problem.requested) if problem.requested is not None else None
        self._is_largest = problem.objective is Objective.LARGEST
        most = problem.max_trials  # of which some are kept for the last turns
        self._most_explored = most - 2 * CHOICES if self._own and most > 8 else most
        self._failure: TrialResult | None = None  # that ended the search
        self._verified: dict[Candidate, TrialResult] = {}
        self._too_large: Candidate | None = None  # with batches of its own order
        # whether a candidate was clearly faster than the user's own settings, in their last turns
        self._faster: dict[Candidate, bool] = {}

    def steps(self) -> Generator[Request, TrialResult, None]:
        most = self.problem.max_trials
        for next_request, limit in (
            (self._explore, self._most_explored),
            (self._compare, most),
            (self._verify, most + MAX_TRIALS),
        ):
            while len(self.runs.samples) < limit and self._failure is None:
                request = next_request()
                if request is None or not self.runs.usable(request.candidate):
                    break
                self._file((yield request), request)

    def learn(self, results: Iterable[TrialResult]) -> None:
        """Files trials of memory with the user's own other settings, short ones, where no longer
        one is known."""
        for result in results:
            candidate = Candidate(self._home, int(result.trial.settings.get("batch_size", 0)))
            if result.trial.kind is TrialKind.MEMORY and not self.runs.rates(candidate):
                self.runs.add(result, candidate, lowers=True)

    def result(self) -> SearchResult:
        candidate, why = self._named()
        runs, own = self.runs, self._own
        others = candidate.others if candidate else self._home
        users_own = own if own is not None and runs.rates(own) else None
        verified = self._verified.get(candidate) if candidate else None
        why = f"{why}; {verified_text(verified)}" if verified else why
        adopted, _, why_workers = self._workers()
        reasons = {"num_workers": why_workers} if why_workers and others == adopted else {}
        return SearchResult(
            chosen=candidate.settings if candidate else None,
            why=reasons | ({"batch_size": why} if candidate else {}),
            speed=speed_estimate(runs.fitting(others)),
            chosen_runs=tuple(runs.at(candidate)) if candidate else (),
            own_runs=tuple(runs.at(users_own)) if users_own else (),
            gain=runs.gain(candidate, users_own)
            if candidate and users_own and candidate != users_own
            else None,
            failure=self._failure,
            verified=verified,
        )

    def _file(self, result: TrialResult, request: Request) -> None:
        candidate, runs = request.candidate, self.runs
        if request.verifies:
            too_much = result.outcome is Outcome.COMPLETED and not self.problem.fits(result)
            if result.outcome not in OUT_OF_MEMORY and not too_much:
                self._verified[candidate] = result
                return
            self._too_large = candidate
        lowers = request.verifies or candidate.others in (self._home, self._workers()[0])
        runs.add(result, candidate, lowers)
        own, gain = self._own, None
        if own is not None and candidate != own and request.see_eval:
            gain = runs.gain(candidate, own)
        if gain is not None and _is_decided(gain):
            self._faster[candidate] = gain.is_clear
        hopeless = (result.outcome in HOPELESS or len(runs.dead) >= PATIENCE) and not runs.fitting()
        stuck = self._is_largest and candidate in runs.dead
        if result.outcome is Outcome.INTERRUPTED or hopeless or stuck or runs.ceiling < 1:
            self._failure = result

    # --- what is named ---

    def _named(self) -> tuple[Candidate | None, str]:
        """The choice with its reason; the user's own settings where nothing is clearly faster."""
        candidate, why = self._choice()
        own, problem = self._own, self.problem
        if candidate is None:
            return None, ""
        if not self._is_largest and own is not None and candidate != own:
            gain = self.runs.gain(candidate, own)
            if gain is not None and not gain.is_clear:
                candidate, why = own, self._kept({candidate: gain})
        largest = max(self.runs.middles(candidate.others), default=self.runs.ceiling)
        if self._is_largest:
            top = "ceiling" if self.runs.ceiling == problem.largest_batch_size else "memory"
        else:
            top = self._ladder.top(len(self.runs.samples) >= self._most_explored)
        top = top_sentence(top, largest, problem.limited_by, problem.max_trials)
        return candidate, f"{why}; {top}" if top else why

    def _choice(self) -> tuple[Candidate | None, str]:
        """What ran best so far: the smallest size within the tolerance of the best; where the
        user's own settings ran, of those that were clearly faster beside them, else of those that
        may be."""
        runs, own = self.runs, self._own
        others = self._workers()[0]
        others = others if runs.fitting(others) else self._home
        choice = choose(self.problem.objective, runs.fitting(others))
        if choice is None:
            return None, ""
        best, why = Candidate(others, choice[0]), choice[1]
        if self._is_largest or own is None or not runs.rates(own):
            return best, why
        faster = "one of the sizes that ran best, clearly faster than your own settings beside it"
        middles = runs.middles(others)
        beside = {size: self._faster.get(Candidate(others, size)) for size in middles}
        clear = [size for size in middles if beside[size]]
        unrefuted = {size: rate for size, rate in middles.items() if beside[size] is not False}
        fastest = max(unrefuted.values(), default=0.0)
        near = [size for size, rate in unrefuted.items() if rate >= fastest * (1 - TOLERANCE)]
        for size in clear or sorted(near if len(middles) - len(unrefuted) < CHOICES else ()):
            candidate = Candidate(others, size)
            gain = runs.gain(candidate, own)
            if candidate != own and gain is not None and gain.middle > TOLERANCE:
                return candidate, why if candidate == best else faster
        return own, self._kept({})

    def _kept(self, unclear: dict[Candidate, Gain]) -> str:
        """Why the user's own settings stay."""
        own = self._own
        assert own is not None
        gains = {
            candidate: gain
            for candidate in self.runs.candidates
            if candidate != own and (gain := self.runs.gain(candidate, own))
        }
        refuted = {c: gain for c, gain in gains.items() if self._faster.get(c) is False}
        unclear = refuted | unclear
        if not unclear:  # what was tried once, or not at the size that is named
            faster = [(c, gain) for c, gain in gains.items() if gain.middle > TOLERANCE]
            unclear = dict(sorted(faster, key=lambda pair: -pair[1].middle)[:1])
        if not unclear:
            return f"your own: nothing that was run is more than {TOLERANCE:.0%} faster"
        return "your own: " + "; ".join(unclear_text(c, gain) for c, gain in unclear.items())

    # --- which trial comes next ---

    def _explore(self) -> Request | None:
        runs, own = self.runs, self._own
        if self._is_largest:  # smaller and smaller until it fits
            size = runs.ceiling
            if runs.samples:
                last = int(runs.samples[-1].trial.settings["batch_size"])
                size = max(1, min(size, int(last * SHRINK)))
            return None if runs.fitting() else Request(Candidate(self._home, size), see_eval=True)
        if own is not None and runs.usable(own) and not runs.at(own):
            return Request(own)
        candidate = self._workers()[1] or self._ladder.next_candidate()
        return Request(candidate) if candidate is not None else None

    @property
    def _start(self) -> int:
        """The user's own size, else the middle (in octaves) of what fits."""
        if self._own is not None and self.runs.rates(self._own):
            return self._own.size
        return max(1, math.isqrt(self.problem.largest_batch_size))

    @property
    def _ladder(self) -> Ladder:
        most = self.problem.largest_batch_size
        return Ladder(self.runs, self._workers()[0], self._start, most)

    def _workers(self) -> tuple[Others, Candidate | None, str]:
        """(The settings beside the batch size, with the number of workers that was clearly faster
        at the first size; what is to run before that is decided; the reason.)"""
        others, why, runs, size = self._home, "", self.runs, self._start
        for count in self.problem.worker_counts:
            present = Candidate(others, size)
            other = Candidate(tuple((dict(others) | {"num_workers": count}).items()), size)
            shares = [r.loading_share for r in runs.at(present) if r.loading_share is not None]
            if shares and max(shares) < WORTH:
                return others, None, why or "loading takes no time worth saving"
            gain, turn = runs.gain(other, present), runs.turn(present, other)
            if gain is None:
                is_open = runs.usable(turn) and not runs.at(turn)
            else:
                is_open = not gain.is_clear and gain.high > WORTH and gain.turns < TURNS
            if is_open and runs.usable(turn):
                return others, turn, why
            if gain is not None and gain.is_clear:
                others, why = other.others, gain_text(gain)
            elif not why:
                why = f"{count} brought {gain_text(gain)}" if gain else f"{count} did not run"
        return others, None, why

    def _compare(self) -> Request | None:
        """The choice, and where it is not clearly faster another one, by turns with the user's own
        settings; what is named has run with its evaluation."""
        choice, own = self._choice()[0], self._own
        is_rated = own is not None and self.runs.rates(own)
        if own is None or not is_rated or choice in (None, own) or choice in self._faster:
            choice, own = self._named()[0], None
            if choice is None or self._evaluations(choice):
                return None
        if own is not None and self._evaluations(own) <= self._evaluations(choice):
            choice = own
        return Request(choice, see_eval=True)

    def _evaluations(self, candidate: Candidate) -> int:
        return sum(run.trial.ends.see_eval for run in self.runs.at(candidate))

    def _verify(self) -> Request | None:
        """Where batches are uneven, what is named runs with those of its own order; where they take
        too much, the next smaller size is run and what is named then."""
        if not self.problem.is_uneven():
            return None
        if self._too_large is not None:
            size = max(1, min(self.runs.ceiling, int(self._too_large.size * SHRINK)))
            smaller = replace(self._too_large, size=size)
            if self.runs.usable(smaller) and not self._evaluations(smaller):
                return Request(smaller, see_eval=True)
            request = self._compare()
            if request is not None:
                return request
        named = self._named()[0]
        if named is None or named in self._verified:
            return None
        return Request(named, verifies=True)


def _is_decided(gain: Gain) -> bool:
    no_better = gain.high <= TOLERANCE or (gain.turns > 1 and gain.middle <= 0)
    return gain.is_clear or no_better or gain.turns >= LAST_TURNS
