"""Where the memory went at the predicted batch size, and what would make it fit: changes switched
on the imaginary card, or estimated, one on top of the other."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, product
from typing import NamedTuple

from brimful.ask.reading import CardView, MemoryAnswer
from brimful.ask.speed import has_a_fixed_total, with_whole_steps
from brimful.decide.memory.bracket import upper_limit
from brimful.decide.memory.breakdown import (
    CACHE,
    Annotated,
    Breakdowns,
    annotate,
    break_down,
)
from brimful.decide.memory.changes import (
    FREE,
    MICRO_BATCHES,
    OF_THE_SCRIPT,
    SHARDED,
    Change,
    Facts,
    Situation,
    rounded_sizes,
)
from brimful.decide.memory.fit import Card, ExtrapolatedPeaks
from brimful.decide.memory.intervals import with_part
from brimful.decide.memory.remedies import (
    Memory,
    checkpointing_line,
    is_worth_it,
    switched_already,
)
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from brimful.errors import UntilStopped
from brimful.measure.traces import read_trace, read_traces
from brimful.units import format_duration
from brimful.values import (
    Diagnostic,
    Estimate,
    IntervalPart,
    NoRemedy,
    Outcome,
    PeakEstimate,
    Remedy,
    Source,
    TrialResult,
    Verdict,
    WhatIf,
)
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.replay import Peaks
from brimful_inside.simulator.trace import CardTrace, Trace

# Assumed: who has waited so long for the answer gets it before trials of changes are made.
_LONG_S = 300.0


@dataclass(frozen=True)
class Explained:
    """The breakdowns at a batch size, and what they were made from."""

    breakdowns: Breakdowns
    program: Program
    sizes: Sequence[int]
    annotated: Annotated
    # That holds at that batch size, on a single card; None: it is a trace of it.
    model: SizeModel | None


def explain(view: CardView, answer: MemoryAnswer) -> Explained | None:
    """The breakdowns whose parts add up to the predicted peak; None where no trace gives it."""
    if answer.peak is None:
        return None
    card, trials, peak = view.card, view.trials, answer.peak.device_bytes
    alone = (answer.alone or answer.peak).device_bytes
    explained = _explained(card, chain.from_iterable(origins_of(view, answer)), alone)
    drawn = view.uneven.drawn.get(trials.effective(answer.size))
    breakdowns = explained.breakdowns if explained is not None else None
    if drawn is not None:
        origins = _of_trial(view, read_traces(drawn, trials.session.folder))
        replays = (partial(card.replay, origin.program) for origin in origins)
        alone = max(card.device_bytes(card.shown(replay).peak) for replay in replays)
        of_drawn = _explained(card, origins, alone)
        breakdowns = of_drawn.breakdowns if of_drawn is not None else None
    if explained is None or breakdowns is None:
        return None
    breakdowns.whole.parts[CACHE] += peak - alone
    return replace(explained, breakdowns=breakdowns)


def _explained(card: Card, origins: Iterable["_Origin"], peak_bytes: int) -> Explained | None:
    """The first that has this peak, on a card of its capacity or without limit."""
    for capacity, origin in product((card.capacity_bytes, None), list(origins)):
        if len(origin.annotated.allocations) != len(origin.sizes):
            continue
        breakdowns = break_down(
            origin.program,
            origin.sizes,
            origin.annotated,
            card.context_bytes,
            card.settings,
            capacity,
        )
        if breakdowns and sum(breakdowns.whole.parts.values()) == peak_bytes:
            return Explained(breakdowns, *origin)
    return None


def opened_downwards(card: Card, answer: MemoryAnswer, explained: Explained) -> MemoryAnswer:
    """The answer whose intervals reach down to the peaks that are left if nothing is as large as
    the upper bound at which it counts."""
    allocations = explained.annotated.allocations
    if not any(allocation.at_most for allocation in allocations):
        return answer
    pairs = zip(allocations, explained.sizes, strict=True)
    sizes = tuple(0 if allocation.at_most else size for allocation, size in pairs)
    program = explained.program.of_sizes(sizes, explained.program.args)
    least = card.shown(partial(card.replay, program))

    def opened(peak: PeakEstimate, peaks: Peaks) -> PeakEstimate:
        at_most = max(0, peak.device_bytes - peaks.reserved - card.context_bytes)
        part = IntervalPart("shapes that depend on values", at_most, 0, "counted as their most")
        return replace(with_part(peak, part), at_most_bytes=at_most)

    phases = {
        name: opened(peak, least.phases.get(name, least.peak))
        for name, peak in answer.phases.items()
    }
    peak, verdict = answer.peak and opened(answer.peak, least.peak), answer.verdict
    may_fit = peak is not None and peak.device_interval_bytes[0] <= card.budget_bytes
    if verdict == Verdict.DOES_NOT_FIT and may_fit:
        verdict = Verdict.TIGHT
    return replace(answer, peak=peak, phases=phases, verdict=verdict)


class _Origin(NamedTuple):
    """A program of one card with its sizes at the answer's batch size, as `Explained` has them."""

    program: Program
    sizes: Sequence[int]
    annotated: Annotated
    model: SizeModel | None = None


def origins_of(view: CardView, answer: MemoryAnswer) -> Iterator[list[_Origin]]:
    """The programs of all cards, by the size model and by a trial at that size, as far as there are
    such."""
    trials = view.trials
    model = answer.conclusion.size_model if answer.conclusion is not None else None
    batch_size = trials.effective(answer.size)
    if model is not None and batch_size is not None and batch_size >= min(model.fitted_at):
        sizes = iter(model.sizes_at(batch_size))
        traces, cards = trials.traces(model.fitted_at[0]), model.program.cards
        yield [
            # The model's program may end before the evaluation, which the trace shows
            # (`ask/shown_once.py`).
            _Origin(
                card,
                list(islice(sizes, len(card.sizes))),
                annotate(trace).first(len(card.sizes)),
                model if len(traces) == 1 else None,
            )
            for (_, _, trace), card in zip(traces, cards, strict=False)
        ]
    if batch_size in trials.results:
        yield _of_trial(view, trials.traces(batch_size))


def _of_trial(view: CardView, traces: Iterable[CardTrace]) -> list[_Origin]:
    programs = ((view.here(program_of(trace)), annotate(trace)) for _, _, trace in traces)
    return [_Origin(program, program.sizes, annotated) for program, annotated in programs]


def what_would_help(
    view: CardView,
    answer: MemoryAnswer,
    explained: Explained,
    step_s: Estimate | None,
    searches: bool,
    noted: list[Diagnostic],
) -> WhatIf:
    """Changes that lower the peak of an answer that has one, on top of each other, until it fits;
    where it fits as it is, all that need neither another card nor the host's memory.

    `step_s`: as it is. `searches`: the largest batch size after a change is worked out as well, by
    one more trace a change, and no change is left out for its time. `noted` gets what cut it short.
    """
    fits = answer.verdict == Verdict.FITS
    steps = FREE + OF_THE_SCRIPT if fits else FREE + MICRO_BATCHES + OF_THE_SCRIPT + SHARDED
    made: list[Remedy | NoRemedy | None] = []
    alone: Remedy | NoRemedy | None = None
    estimator = _Estimator(view, answer, explained, searches)
    with UntilStopped() as work:
        now = _as_it_is(view, answer, explained, step_s is not None)
        alone = estimator.best_of(now, rounded_sizes(now))[1]
        for step in steps:
            now, remedy = estimator.best_of(now, step(now))
            made.append(remedy)
            if now.fits and not fits:
                break
    if work.stop is not None:
        left_out = "not every change that could lower the peak was looked at"
        known = "the answer is whole, and so are the changes that are shown"
        noted.append(view.trials.session.partial(work.stop, left_out, known))
    return WhatIf(
        tuple(row for row in made if isinstance(row, Remedy)),
        tuple(row for row in (alone, *made) if isinstance(row, NoRemedy)),
        (alone,) if isinstance(alone, Remedy) else (),
    )


def _as_it_is(
    view: CardView, answer: MemoryAnswer, explained: Explained, is_timed: bool
) -> Situation:
    trials, conclusion = view.trials, answer.conclusion
    size = trials.effective(answer.size)
    program = explained.program.of_sizes(tuple(explained.sizes), explained.program.args)
    memory = Memory(
        view.card,
        program,
        explained.sizes,
        explained.annotated,
        epochs=tuple(view.epochs(size)),
        comes=bool(view.beside_epochs(size, (program,))),
    )
    done, report = trials.completed(), trials.representative().reports[0]
    # Of a fixed total a step has other micro-batches at each size.
    of_one_size = has_a_fixed_total(done)
    sizes = [s for s in done if s == size] if of_one_size else with_whole_steps(done)
    evaluations = [loader for loader in report.loaders if loader.role == "eval"]
    facts = Facts(
        gpu=view.gpu,
        environment={**os.environ, **trials.command.environment},
        optimizers=[optimizer.name for optimizer in report.optimizers],
        switched=switched_already(explained.annotated),
        eval_batch_size=trials.settings.get("eval_batch_size"),
        eval_samples=max(
            (batch.samples or 0 for loader in evaluations for batch in loader.batches),
            default=None,
        ),
        ranks=max(view.device.ranks or 1, report.world_size),
        has_batches=trials.in_batches and conclusion is not None,
        largest=conclusion.estimate.largest_batch_size if conclusion else None,
        known_from=min(explained.model.fitted_at) if explained.model else None,
        of_one_size=of_one_size,
        is_timed=is_timed,
    )
    return Situation(facts, memory, size, {s or 0: trials.read(s).kernels for s in sizes})


@dataclass(frozen=True)
class _Estimator:
    """Where changes are made: by arithmetic, or by a trial with all that was switched so far."""

    view: CardView
    answer: MemoryAnswer
    explained: Explained
    searches: bool

    def best_of(
        self, now: Situation, alternatives: Iterable[Change | NoRemedy]
    ) -> tuple[Situation, Remedy | NoRemedy | None]:
        """What the first of them that fits leads to, or the last that lowers the peak; where none
        does, why."""
        best: tuple[Situation, Trace | None] | None = None
        why: NoRemedy | None = None
        for change in alternatives:
            made = change if isinstance(change, NoRemedy) else self._made(now, change)
            if isinstance(made, NoRemedy):
                why = made
                break
            if best is not None and made[0].memory.rank >= best[0].memory.rank:
                break
            best = made
            if made[0].fits:
                break
        if best is None:
            return now, why
        after, trace = best
        change, (_, nbytes), (_, before) = after.changes[-1], after.memory.rank, now.memory.rank
        if after.memory.rank[0] >= now.memory.rank[0] and not is_worth_it(before, nbytes):
            kind = "predicted" if after.source is Source.PREDICTED else "estimated"
            higher = "higher" if is_worth_it(nbytes, before) else "no lower"
            return now, NoRemedy(change.code, change.what, f"the {kind} peak is {higher}")
        return after, Remedy(
            change.code,
            change.what,
            change.how,
            after.source,
            nbytes,
            after.memory.verdict,
            after.step_s,
            self._largest(after, trace) if trace is not None and self.searches else None,
            change.basis,
        )

    def _made(self, now: Situation, change: Change) -> tuple[Situation, Trace | None] | NoRemedy:
        """What the change leads to, with the trace that shows it if there is one; or why it cannot
        be made."""
        after, known_from = now.followed_by(change), now.facts.known_from
        if change.batch_size and known_from is not None and change.batch_size >= known_from:
            model = self.explained.model
            assert model is not None
            sizes = model.sizes_at(change.batch_size)
            return after.on(
                Memory(self.view.card, model.program, sizes, self.explained.annotated)
            ), None
        if not (change.switch or change.eval_batch_size or change.batch_size):
            return replace(after, memory=change.memory(now.memory)), None
        session = self.view.trials.session
        if session.elapsed_s > _LONG_S and not self.searches:
            trial_s = max(result.duration_s for result in session.results)
            why = (
                f"not tried, since trials of up to {format_duration(trial_s)} had taken "
                f"{format_duration(session.elapsed_s)} by then; --what-if tries it"
            )
            return NoRemedy(change.code, change.what, why)
        result, trace = self._trial(after, after.batch_size)
        how = change.how or (checkpointing_line(trace) if trace is not None else "")
        if trace is None or not how:
            why = "brimful found no blocks that repeat, and no switch of the model's own"
            if trace is None:
                why = f"the command fails with it: {_failure(result)}"
            return NoRemedy(change.code, change.what, why)
        program = self.view.here(program_of(trace))
        after = replace(
            now.followed_by(replace(change, how=how)),
            kernels={after.batch_size or 0: trace.runs},
        )
        return after.on(Memory(self.view.card, program, program.sizes, annotate(trace))), trace

    def _trial(self, after: Situation, batch_size: int | None) -> tuple[TrialResult, Trace | None]:
        """One trial of all changes, on a card as large as it needs to be, and its trace if it
        completed.
        """
        trials = self.view.trials
        trial = trials.trial_at(batch_size, limitless=True)
        settings, sees_eval = dict(trial.settings), trials.shown_whole is None
        for change in after.changes:
            if change.eval_batch_size is not None:
                settings["eval_batch_size"], sees_eval = change.eval_batch_size, True
        what_ifs = tuple(change.switch for change in after.changes if change.switch)
        ends = replace(trial.ends, see_eval=sees_eval)
        result = trials.session.run(replace(trial, settings=settings, what_ifs=what_ifs, ends=ends))
        completed = result.outcome is Outcome.COMPLETED
        return result, read_trace(result, trials.session.folder) if completed else None

    def _largest(self, after: Situation, trace: Trace) -> int | None:
        """The largest batch size that would fit, extrapolated from this trace and one at a smaller
        size; None if that fails.
        """
        conclusion, size = self.answer.conclusion, after.batch_size
        if conclusion is None or conclusion.estimate.ignores_batch_size:
            return None
        if after.source is Source.ESTIMATE or size is None:
            return None
        small = next((traced for traced in sorted(conclusion.traced) if traced < size), None)
        small_trace = None if small is None else self._trial(after, small)[1]
        if small is None or small_trace is None:
            return None
        traces = {small: small_trace, size: trace}
        model = fit_size_model({at: self.view.here(program_of(traces[at])) for at in traces})
        if model is None or not model.exact:
            return None
        peaks, upper = ExtrapolatedPeaks(model, after.memory.card), self.view.trials.limits()
        return peaks.largest(small, upper_limit(upper)[0])


def _failure(result: TrialResult) -> str:
    failure = result.failure
    if failure is None:
        return result.outcome.value.replace("_", " ")
    return f"{failure.type}: {failure.message.partition(chr(10))[0]}"
