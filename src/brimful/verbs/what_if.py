"""Where the memory went at the predicted batch size, and what would make it fit: changes switched
on the imaginary card, or estimated, one on top of the other."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice, product
from typing import NamedTuple

from brimful.decide.memory import remedies
from brimful.decide.memory.bracket import upper_limit
from brimful.decide.memory.breakdown import (
    CACHE,
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    Annotated,
    Breakdowns,
    annotate,
    break_down,
)
from brimful.decide.memory.fit import Card, ExtrapolatedPeaks
from brimful.decide.memory.intervals import with_part
from brimful.decide.memory.remedies import Memory, Resize
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from brimful.decide.speed import updates
from brimful.decide.speed.kernels import fit_kernels
from brimful.decide.speed.predicted import LINKS_REACHED, efficiency_of, predict_speed
from brimful.decide.speed.updates import Reworked
from brimful.errors import CUT_SHORT
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
from brimful.verbs.imaginary import CardView
from brimful.verbs.step_speed import has_a_fixed_total, with_whole_steps
from brimful.verbs.warnings import Answer
from brimful_inside.simulator.allocator_settings import (
    conf_in,
    settings_from,
    with_expandable_segments,
)
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.replay import Peaks
from brimful_inside.simulator.roofline import BY_GRAPH, BY_OPTIMIZER, Kernel
from brimful_inside.simulator.trace import CardTrace, Trace

_CARDS = (2, 4, 8)  # of one machine
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


def explain(view: CardView, answer: Answer) -> Explained | None:
    """The breakdowns whose parts add up to the predicted peak; None where no trace gives it."""
    if answer.peak is None:
        return None
    card, trials, peak = view.card, view.trials, answer.peak.device_bytes
    alone = (answer.alone or answer.peak).device_bytes
    explained = _explained(card, chain.from_iterable(origins_of(view, answer)), alone)
    drawn = trials.drawn.get(trials.effective(answer.size))
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


def opened_downwards(card: Card, answer: Answer, explained: Explained) -> Answer:
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


def origins_of(view: CardView, answer: Answer) -> Iterator[list[_Origin]]:
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
            # (`verbs/long_evaluation.py`).
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
    answer: Answer,
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
    changes = _Changes(view, answer, explained, step_s, searches)
    try:
        changes.make()
    except CUT_SHORT as stop:
        left_out = "not every change that could lower the peak was looked at"
        known = "the answer is whole, and so are the changes that are shown"
        noted.append(view.trials.session.partial(stop, left_out, known))
    return WhatIf(tuple(changes.remedies), tuple(changes.others), tuple(changes.instead))


@dataclass(frozen=True)
class _State:
    """What the changes so far lead to. A step has `parts` micro-batches of `batch_size`."""

    memory: Memory
    batch_size: int | None
    kernels: Mapping[int, Sequence[Kernel]]  # of a micro-batch, by batch size
    step_s: Estimate | None
    parts: int = 1
    what_ifs: tuple[str, ...] = ()
    eval_batch_size: int | None = None
    resizes: tuple[Resize, ...] = ()
    reworked: tuple[Reworked, ...] = ()  # what the changes make of a step's kernels
    more_s: float = 0.0  # of a step, beside its kernels


@dataclass
class _Changes:
    """Each method makes one change where it lowers the peak, and says in `others` why where it does
    not.
    """

    view: CardView
    answer: Answer
    explained: Explained
    step_s: Estimate | None
    searches: bool
    remedies: list[Remedy] = field(default_factory=list)
    others: list[NoRemedy] = field(default_factory=list)
    instead: list[Remedy] = field(default_factory=list)  # of expandable segments, each alone

    def __post_init__(self) -> None:
        trials, explained = self.view.trials, self.explained
        size = trials.effective(self.answer.size)
        program = explained.program.of_sizes(tuple(explained.sizes), explained.program.args)
        memory = Memory(
            self.view.card,
            program,
            explained.sizes,
            explained.annotated,
            epochs=tuple(self.view.epochs(size)),
            comes=bool(self.view.beside_epochs(size, (program,))),
        )
        done = trials.completed()
        # Of a fixed total a step has other micro-batches at each size: those of one size say
        # nothing of another.
        self.of_one_size = has_a_fixed_total(done)
        sizes = [s for s in done if s == size] if self.of_one_size else with_whole_steps(done)
        kernels = {size or 0: trials.read(size).kernels for size in sizes}
        self.now = _State(memory, size, kernels, self.step_s)

    @staticmethod
    def fits(state: _State) -> bool:
        return state.memory.verdict == Verdict.FITS

    def make(self) -> None:
        self.against_fragmentation()
        free = (self.expandable_segments, self.fused_optimizer, self.smaller_evaluation)
        of_the_script = (
            self.mixed_precision,
            self.chunked_loss,
            self.gradient_checkpointing,
            self.eight_bit_states,
        )
        if self.answer.verdict == Verdict.FITS:
            for change in (*free, *of_the_script):
                change()
        else:
            for change in (*free, self.micro_batches, *of_the_script, self.sharded):
                change()
                if self.fits(self.now):
                    break

    def expandable_segments(self) -> None:
        code, what = "expandable-segments", "expandable segments"
        memory = self.now.memory
        settings = memory.card.settings
        if not settings.native:
            return
        if memory.program.settings_after(settings).expandable_segments:
            return self._no(code, what, "the command uses them already")
        card = replace(memory.card, settings=settings._replace(expandable_segments=True))
        environment = {**os.environ, **self.view.trials.command.environment}
        how = f"PYTORCH_CUDA_ALLOC_CONF={with_expandable_segments(environment)} before the command"
        after = replace(self.now, memory=replace(memory, card=card))
        self._take(code, what, how, Source.PREDICTED, after)

    def against_fragmentation(self) -> None:
        """What else keeps uneven batches from leaving the reserved memory in pieces."""
        memory, before = self.now.memory, self.now
        settings = memory.program.settings_after(memory.card.settings)
        if not memory.epochs or settings.expandable_segments or not settings.native:
            return
        conf = conf_in({**os.environ, **self.view.trials.command.environment})
        confs = [
            ",".join(filter(None, (conf, f"roundup_power2_divisions:{divisions}")))
            for divisions in remedies.DIVISIONS
        ]
        rounded = {
            text: replace(memory, card=replace(memory.card, settings=settings_from(text)))
            for text in confs
        }
        best = min(confs, key=lambda text: rounded[text].rank)
        how = f"PYTORCH_CUDA_ALLOC_CONF={best} before the command"
        after = replace(before, memory=rounded[best])
        if self._take("rounded-sizes", "sizes rounded up", how, Source.PREDICTED, after):
            self.instead.append(self.remedies.pop())
            self.now = before

    def fused_optimizer(self) -> None:
        memory = self.now.memory
        names = self._optimizers(remedies.FUSED_OPTIMIZERS)
        if names and any(map(remedies.is_of_the_step, memory.annotated.allocations)):
            self._take(
                "fused-optimizer",
                "a fused optimizer",
                f'fused=True in {names[0]}, optim="{names[0].lower()}_torch_fused" of '
                "Transformers' Trainer",
                Source.ESTIMATE,
                self._resized(remedies.fused, updates.updated_by(self._update_bytes(memory), 1)),
                "without the step's temporaries",
            )

    def _update_bytes(self, memory: Memory) -> int:
        return updates.update_bytes(memory.bytes_of(GRADIENTS), memory.bytes_of(OPTIMIZER_STATE))

    def _optimizers(self, of: Sequence[str]) -> list[str]:
        report = self.view.trials.representative().reports[0]
        return [optimizer.name for optimizer in report.optimizers if optimizer.name in of]

    def smaller_evaluation(self) -> None:
        """Where evaluation sets the peak: its batch in as few parts as are enough, run where the
        command has a place for its size, else estimated."""
        if self.now.memory.phase != "eval":
            return
        code, what = "eval-batch", "a smaller evaluation batch"
        size = self.view.trials.settings.get("eval_batch_size")
        for parts in remedies.EVALUATION_PARTS:
            after = self._resized(remedies.evaluation_in(parts))
            if after.memory.phase != "eval" or self.fits(after):
                break
        if isinstance(size, int) and size > 1:
            smaller = max(1, size // parts)
            wanted = replace(self.now, eval_batch_size=smaller)
            return self._run(code, what, f"an evaluation batch of {smaller}", wanted)
        how = f"an evaluation loader with a batch size of its own, 1/{parts} of this or less"
        self._take(
            code, what, how, Source.ESTIMATE, after, f"what the evaluation makes in {parts} parts"
        )

    def micro_batches(self) -> None:
        """The same batch in parts with the gradients summed: as few as make it fit, else the most
        that sizes are known for.
        """
        size, conclusion, after = self.now.batch_size, self.answer.conclusion, None
        code, what = "accumulation", "micro-batches"
        if size is None or conclusion is None or not self.view.trials.in_batches:
            return
        if self.now.memory.phase != "train":
            return
        largest = conclusion.estimate.largest_batch_size
        parts = 2 if self.explained.model else size
        parts = max(2, -(-size // largest) if largest else parts)
        while parts <= size and (after is None or not self.fits(after)):
            wanted = replace(self.now, batch_size=-(-size // parts), parts=parts)
            smaller = self._extrapolated(wanted)
            if smaller is None and self._takes_too_long(code, what):
                break
            if smaller is None and (largest or after is None):
                _, trace = self._trial(wanted, wanted.batch_size)
                smaller = None if trace is None else self._traced(wanted, trace)
            if smaller is None or (after and smaller.memory.rank >= after.memory.rank):
                break  # what sets the peak then is not the micro-batch
            after, parts = smaller, 2 * parts
        if after is None:
            return
        known = "a trial at" if self._extrapolated(after) is None else "sizes extrapolated to"
        self._take(
            f"accumulation-{after.parts}",
            f"{after.parts} micro-batches of {after.batch_size}",
            f"batches of {after.batch_size}, optimizer.step() after every {after.parts} of them, "
            f"the loss divided by {after.parts}: the same effective batch",
            Source.ESTIMATE,
            after,
            f"{known} batch size {after.batch_size}, with all gradients alive",
        )

    def mixed_precision(self) -> None:
        code, what = "mixed-precision", "mixed precision"
        if remedies.computes_in_half(chain.from_iterable(self.now.kernels.values())):
            return self._no(code, what, "the command computes in half precision already")
        self._switch(code, what, "autocast", remedies.autocast_line(self.view.gpu.capability))

    def gradient_checkpointing(self) -> None:
        self._switch("gradient-checkpointing", "gradient checkpointing", "checkpointing", "")

    def chunked_loss(self) -> None:
        resize = remedies.chunked_loss(self.now.memory)
        if resize is not None:
            self._take(
                "chunked-loss",
                "the loss in chunks",
                "a part of the tokens after the other under torch.utils.checkpoint, or Liger's "
                "fused cross-entropy",
                Source.ESTIMATE,
                self._resized(resize),
                f"allocations of the logits' size in {remedies.CHUNKS} parts",
            )

    def eight_bit_states(self) -> None:
        names = self._optimizers(remedies.EIGHT_BIT_OPTIMIZERS)
        if names:
            after = self._resized(remedies.eight_bit)
            # It updates one tensor after the other.
            tensors = max(1, self.now.memory.count_of(GRADIENTS))
            update = updates.updated_by(self._update_bytes(after.memory), tensors)
            self._take(
                "optimizer-8bit",
                "8-bit optimizer states",
                f"bitsandbytes.optim.{names[0]}8bit in place of {names[0]}",
                Source.ESTIMATE,
                replace(after, reworked=(*after.reworked, update)),
                "arithmetic on the bytes of the states, 1 byte an element and 4 for each "
                f"{remedies.EIGHT_BIT_BLOCK}",
            )

    def sharded(self) -> None:
        """As few cards as make it fit, else the most."""
        report = self.view.trials.representative().reports[0]
        if (self.view.device.ranks or 1) > 1 or report.world_size > 1:
            return
        memory = self.now.memory
        whole = remedies.gathered_bytes(memory)
        peer = efficiency_of(self.view.gpu).peer_bytes_per_s
        # Parameters are gathered twice.
        exchanged = 2 * memory.bytes_of(PARAMETERS) + memory.bytes_of(GRADIENTS)
        for cards in _CARDS:
            more_s = exchanged * (cards - 1) / cards * self.now.parts / (peer * LINKS_REACHED[1])
            after = self._resized(remedies.sharded(cards), updates.shared_by(cards), more_s)
            card, more = after.memory.card.among(cards), after.memory.more_bytes + whole
            after = replace(after, memory=replace(after.memory, card=card, more_bytes=more))
            if self.fits(after):
                break
        how = (
            "torch.distributed.fsdp.fully_shard on each block and on the model, made on the host "
            "or the meta device"
        )
        basis = (
            f"1/{cards} of parameters, gradients and states, some blocks whole, NCCL's buffers; "
            "the exchange hidden by nothing"
        )
        self._take("fsdp", f"FSDP over {cards} cards", how, Source.ESTIMATE, after, basis)

    # --- how a change is made

    def _switch(self, code: str, what: str, name: str, how: str) -> None:
        if code in remedies.switched_already(self.explained.annotated):
            return self._no(code, what, "the script uses it already")
        self._run(code, what, how, replace(self.now, what_ifs=(*self.now.what_ifs, name)))

    def _run(self, code: str, what: str, how: str, wanted: _State) -> None:
        """By a trial with all that was switched so far; what was estimated before is applied to its
        trace.
        """
        if self._takes_too_long(code, what):
            return
        result, trace = self._trial(wanted, wanted.batch_size)
        if trace is None:
            return self._no(code, what, f"the command fails with it: {_failure(result)}")
        how = how or remedies.checkpointing_line(trace)
        if not how:
            return self._no(
                code, what, "brimful found no blocks that repeat, and no switch of the model's own"
            )
        after = self._traced(wanted, trace)
        source = Source.ESTIMATE if after.resizes or after.parts > 1 else Source.PREDICTED
        if self._take(code, what, how, source, after) and self.searches:
            largest = self._largest(after, trace)
            self.remedies[-1] = replace(self.remedies[-1], largest_batch_size=largest)

    def _extrapolated(self, wanted: _State) -> _State | None:
        """What is wanted at its batch size, where the model of sizes holds there."""
        model, size, annotated = self.explained.model, wanted.batch_size, self.explained.annotated
        if model is None or size is None or size < min(model.fitted_at):
            return None
        return self._with(model.program, model.sizes_at(size), annotated, wanted)

    def _traced(self, wanted: _State, trace: Trace) -> _State:
        program = self.view.here(program_of(trace))
        wanted = replace(wanted, kernels={wanted.batch_size or 0: trace.runs})
        return self._with(program, program.sizes, annotate(trace), wanted)

    def _resized(
        self, resize: Resize, rework: Reworked | None = None, more_s: float = 0.0
    ) -> _State:
        """After a change that arithmetic tells of."""
        now = self.now
        return replace(
            now,
            memory=now.memory.resized(resize),
            resizes=(*now.resizes, resize),
            reworked=(*now.reworked, rework) if rework else now.reworked,
            more_s=now.more_s + more_s,
        )

    def _with(
        self, program: Program, sizes: Sequence[int], annotated: Annotated, state: _State
    ) -> _State:
        """`state` with the memory of another program, and with what was estimated so far."""
        memory = Memory(self.now.memory.card, program, sizes, annotated)
        for resize in state.resizes:
            memory = memory.resized(resize)
        return replace(state, memory=memory.with_all_gradients() if state.parts > 1 else memory)

    def _take(
        self, code: str, what: str, how: str, source: Source, after: _State, basis: str = ""
    ) -> bool:
        (badness_before, before_bytes), (badness, after_bytes) = (
            self.now.memory.rank,
            after.memory.rank,
        )
        if badness >= badness_before and not remedies.is_worth_it(before_bytes, after_bytes):
            kind = "predicted" if source is Source.PREDICTED else "estimated"
            higher = "higher" if remedies.is_worth_it(after_bytes, before_bytes) else "no lower"
            self._no(code, what, f"the {kind} peak is {higher}")
            return False
        self.now = after = replace(after, step_s=self._step_s(after))
        verdict = after.memory.verdict
        self.remedies.append(
            Remedy(code, what, how, source, after_bytes, verdict, after.step_s, basis=basis)
        )
        return True

    def _takes_too_long(self, code: str, what: str) -> bool:
        """Whether a trial of a change is left out, as the search took long and nobody asked."""
        session = self.view.trials.session
        too_long = session.elapsed_s > _LONG_S and not self.searches
        if too_long:
            trial_s = max(result.duration_s for result in session.results)
            self._no(
                code,
                what,
                f"not tried, since trials of up to {format_duration(trial_s)} had taken "
                f"{format_duration(session.elapsed_s)} by then; --what-if tries it",
            )
        return too_long

    def _no(self, code: str, what: str, why: str) -> None:
        self.others.append(NoRemedy(code, what, why))

    def _trial(self, state: _State, batch_size: int | None) -> tuple[TrialResult, Trace | None]:
        """One trial of what was switched, on a card as large as it needs to be, and its trace if it
        completed.
        """
        trials = self.view.trials
        trial = trials.trial_at(batch_size, limitless=True)
        settings, sees_eval = dict(trial.settings), trials.evaluation_of is None
        if state.eval_batch_size is not None:
            settings["eval_batch_size"], sees_eval = state.eval_batch_size, True
        result = trials.session.run(
            replace(trial, settings=settings, what_ifs=state.what_ifs, see_eval=sees_eval)
        )
        completed = result.outcome is Outcome.COMPLETED
        return result, read_trace(result, trials.session.folder) if completed else None

    def _step_s(self, state: _State) -> Estimate | None:
        """Of as many micro-batches as make a step, and one update."""
        step_s = self._with_kernels(state, state.reworked)
        if step_s is not None and state.parts > 1:
            memory = state.memory
            sum_of_all = updates.adding_gradients(
                memory.bytes_of(GRADIENTS), memory.count_of(GRADIENTS)
            )
            micro_s = self._with_kernels(state, (sum_of_all,))
            step_s = micro_s and updates.micro_batches_s(step_s, micro_s, state.parts)
        return step_s and step_s.with_all(lambda seconds: seconds + state.more_s)

    def _with_kernels(self, state: _State, reworked: Sequence[Reworked]) -> Estimate | None:
        steps = state.kernels
        if self.of_one_size and state.parts > 1:
            return None
        engines = {kernel.engine for kernels in steps.values() for kernel in kernels}
        if reworked and BY_GRAPH in engines and BY_OPTIMIZER not in engines:
            return None  # the update is in the graph, and nobody knows which kernels it is
        for rework in reworked:
            steps = {size: rework(kernels) for size, kernels in steps.items()}
        kernels = fit_kernels(steps)
        if kernels is None or self.step_s is None:
            return None
        speed = predict_speed(kernels, self.view.gpu, state.batch_size, None, None)
        return speed.step_s if speed is not None else None

    def _largest(self, after: _State, trace: Trace) -> int | None:
        """The largest batch size that would fit, extrapolated from this trace and one at a smaller
        size; None if that fails.
        """
        conclusion, size = self.answer.conclusion, after.batch_size
        if conclusion is None or conclusion.estimate.ignores_batch_size:
            return None
        if after.resizes or after.parts > 1 or size is None:
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
