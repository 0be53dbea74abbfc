"""Where the memory went at the predicted batch size, and what would make it fit: changes switched
on the imaginary card, or estimated, one on top of the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from brimful.decide.memory import remedies
from brimful.decide.memory.bracket import upper_limit
from brimful.decide.memory.breakdown import (
    GRADIENTS,
    OPTIMIZER_STATE,
    PARAMETERS,
    Annotated,
    Breakdowns,
    annotate,
    break_down,
)
from brimful.decide.memory.fit import ExtrapolatedPeaks
from brimful.decide.memory.remedies import Memory, Resize
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from brimful.decide.speed import updates
from brimful.decide.speed.kernels import fit_kernels
from brimful.decide.speed.predicted import LINKS_REACHED, efficiency_of, predict_speed
from brimful.decide.speed.updates import Reworked
from brimful.measure.traces import read_trace
from brimful.values import (
    Estimate,
    NoRemedy,
    Outcome,
    Remedy,
    Setting,
    Source,
    TrialResult,
    Verdict,
    WhatIf,
)
from brimful.verbs.imaginary import Tracer, limits_of
from brimful.verbs.step_speed import has_a_fixed_total, with_whole_steps
from brimful.verbs.warnings import Answer
from brimful_inside.simulator.allocator_settings import conf_in
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.roofline import BY_GRAPH, BY_OPTIMIZER, Kernel
from brimful_inside.simulator.trace import Trace

_CARDS = (2, 4, 8)  # of one machine


@dataclass(frozen=True)
class Found:
    """The breakdowns at a batch size, and what they were made from."""

    breakdowns: Breakdowns
    program: Program
    sizes: Sequence[int]
    annotated: Annotated
    model: (
        SizeModel | None
    )  # that holds at that batch size, on a single card; None: it is a trace of it


def find(tracer: Tracer, answer: Answer) -> Found | None:
    """The breakdowns whose parts add up to the predicted peak; None where no trace gives it."""
    card, peak = tracer.card, answer.peak
    origins = list(_origins(tracer, answer)) if peak is not None else []
    for capacity, (program, sizes, annotated, model) in product(
        (card.capacity_bytes, None), origins
    ):
        if len(annotated.allocations) != len(sizes):
            continue
        made = break_down(program, sizes, annotated, card.context_bytes, card.settings, capacity)
        if (
            made is not None
            and peak is not None
            and sum(made.whole.parts.values()) == peak.device_bytes
        ):
            return Found(made, program, sizes, annotated, model)
    return None


def _origins(
    tracer: Tracer, answer: Answer
) -> Iterator[tuple[Program, Sequence[int], Annotated, SizeModel | None]]:
    """Programs with their sizes at the answer's batch size, each of one card."""
    model = answer.conclusion.size_model if answer.conclusion is not None else None
    batch_size = tracer.effective(answer.size)
    if model is not None and batch_size is not None and batch_size >= min(model.fitted_at):
        sizes, start, cards = model.sizes_at(batch_size), 0, tracer.cards(model.fitted_at[0])
        for one, card in zip(cards, model.program.cards, strict=False):
            own = sizes[start : start + len(card.sizes)]
            start += len(card.sizes)
            alone = len(cards) == 1
            program = model.program if alone else tracer.here(program_of(one.trace))
            # The model's program may end before the evaluation, which the trace shows
            # (`verbs/long_evaluation.py`).
            yield program, own, annotate(one.trace).first(len(own)), model if alone else None
    if batch_size in tracer.results:
        for one in tracer.cards(batch_size):
            program = tracer.here(program_of(one.trace))
            yield program, program.sizes, annotate(one.trace), None


def what_would_help(
    tracer: Tracer, answer: Answer, found: Found, step_s: Estimate | None, searches: bool
) -> WhatIf:
    """Changes that lower the peak of an answer that has one, on top of each other, until it fits;
    where it fits as it is, all that need neither another card nor the host's memory.

    `step_s`: as it is. `searches`: the largest batch size after a change is worked out as well, by
    one more trace a change.
    """
    ladder = _Ladder(tracer, answer, found, step_s, searches)
    free = (ladder.expandable_segments, ladder.fused_optimizer, ladder.smaller_evaluation)
    of_the_script = (
        ladder.mixed_precision,
        ladder.chunked_loss,
        ladder.gradient_checkpointing,
        ladder.eight_bit_states,
    )
    if answer.verdict == Verdict.FITS:
        changes = (*free, *of_the_script)
    else:
        changes = (
            *free,
            ladder.micro_batches,
            *of_the_script,
            ladder.offloaded_states,
            ladder.sharded,
        )
    for change in changes:
        change()
        if answer.verdict != Verdict.FITS and ladder.verdict == Verdict.FITS:
            break
    return WhatIf(tuple(ladder.remedies), tuple(ladder.others))


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
class _Ladder:
    """Each method makes one change where it lowers the peak, and says in `others` why where it does
    not.
    """

    tracer: Tracer
    answer: Answer
    found: Found
    step_s: Estimate | None
    searches: bool
    remedies: list[Remedy] = field(default_factory=list)
    others: list[NoRemedy] = field(default_factory=list)

    def __post_init__(self) -> None:
        asked = self.tracer.effective(self.answer.size)
        memory = Memory(
            self.tracer.card, self.found.program, self.found.sizes, self.found.annotated
        )
        done = self.tracer.completed()
        # Of a fixed total a step has other micro-batches at each size: those of one size say
        # nothing of another.
        self.of_one_size = has_a_fixed_total(done)
        sizes = (
            [size for size in done if size == asked] if self.of_one_size else with_whole_steps(done)
        )
        self.now = _State(
            memory, asked, {size or 0: self.tracer.kernels(size) for size in sizes}, self.step_s
        )
        self.states_bytes = memory.bytes_of(OPTIMIZER_STATE)

    @property
    def verdict(self) -> Verdict:
        return self.now.memory.card.verdict(self.now.memory.play)

    def expandable_segments(self) -> None:
        settings = self.now.memory.card.settings
        if not settings.native:
            return
        if self.now.memory.program.settings_after(settings).expandable_segments:
            return self._no(
                "expandable-segments", "expandable segments", "the command uses them already"
            )
        card = replace(self.now.memory.card, settings=settings._replace(expandable_segments=True))
        before = conf_in(self.tracer.command.environment)
        conf = ",".join(filter(None, (before, "expandable_segments:True")))
        how = f"PYTORCH_CUDA_ALLOC_CONF={conf} before the command"
        after = replace(self.now, memory=replace(self.now.memory, card=card))
        self._take("expandable-segments", "expandable segments", how, Source.PREDICTED, after)

    def fused_optimizer(self) -> None:
        known = self._optimizers(remedies.FUSED_OPTIMIZERS)
        if known and any(map(remedies.is_of_the_step, self.now.memory.annotated.allocations)):
            how = (
                f'fused=True in {known[0]}, optim="{known[0].lower()}_torch_fused" of '
                "Transformers' Trainer"
            )
            after = self._resized(
                remedies.fused, updates.updated_by(self._update_bytes(self.now.memory), 1)
            )
            self._take(
                "fused-optimizer",
                "a fused optimizer",
                how,
                Source.ESTIMATE,
                after,
                "without the step's temporaries",
            )

    def _update_bytes(self, memory: Memory) -> int:
        return updates.update_bytes(memory.bytes_of(GRADIENTS), memory.bytes_of(OPTIMIZER_STATE))

    def _optimizers(self, of: Sequence[str]) -> list[str]:
        return [
            one.name for one in self.tracer.representative().reports[0].optimizers if one.name in of
        ]

    def smaller_evaluation(self) -> None:
        """Where evaluation sets the peak: its batch in as few parts as are enough, run where the
        command has a place for its size, else estimated."""
        if self.now.memory.phase != "eval":
            return
        code, what, size = (
            "eval-batch",
            "a smaller evaluation batch",
            self.tracer.settings.get("eval_batch_size"),
        )
        for parts in remedies.EVALUATION_PARTS:
            after = self._resized(remedies.evaluation_in(parts))
            if (
                after.memory.phase != "eval"
                or after.memory.card.verdict(after.memory.play) == Verdict.FITS
            ):
                break
        if isinstance(size, int) and size > 1:
            smaller = max(1, size // parts)
            self._run(
                code,
                what,
                f"an evaluation batch of {smaller}",
                replace(self.now, eval_batch_size=smaller),
            )
        else:
            how = f"an evaluation loader with a batch size of its own, 1/{parts} of this or less"
            self._take(
                code,
                what,
                how,
                Source.ESTIMATE,
                after,
                f"what the evaluation makes in {parts} parts",
            )

    def micro_batches(self) -> None:
        """The same batch in parts with the gradients summed: as few as make it fit, else the most
        that sizes are known for.
        """
        asked, conclusion, after = self.now.batch_size, self.answer.conclusion, None
        if (
            asked is None
            or conclusion is None
            or self.now.memory.phase != "train"
            or not self.tracer.in_batches
        ):
            return
        largest = conclusion.estimate.largest_batch_size
        parts = max(2, -(-asked // largest) if largest else 2 if self.found.model else asked)
        while parts <= asked and (
            after is None or after.memory.card.verdict(after.memory.play) != Verdict.FITS
        ):
            wanted = replace(self.now, batch_size=-(-asked // parts), parts=parts)
            found = self._extrapolated(wanted)
            if found is None and (largest or after is None):
                _, trace = self._trial(wanted, wanted.batch_size)
                found = None if trace is None else self._traced(wanted, trace)
            if found is None:
                break
            after, parts = found, 2 * parts
        if after is None:
            return
        size, parts = after.batch_size, after.parts
        each = (
            f"optimizer.step() after every {parts} of them, the loss divided by {parts}: the "
            "same effective batch"
        )
        known = "a trial at" if self._extrapolated(after) is None else "sizes extrapolated to"
        basis, what = (
            f"{known} batch size {size}, with all gradients alive",
            f"{parts} micro-batches of {size}",
        )
        self._take(
            f"accumulation-{parts}",
            what,
            f"batches of {size}, {each}",
            Source.ESTIMATE,
            after,
            basis,
        )

    def mixed_precision(self) -> None:
        if remedies.computes_in_half(
            kernel for kernels in self.now.kernels.values() for kernel in kernels
        ):
            return self._no(
                "mixed-precision",
                "mixed precision",
                "the command computes in half precision already",
            )
        how = remedies.autocast_line(self.tracer.gpu.capability)
        self._switch("mixed-precision", "mixed precision", "autocast", how)

    def gradient_checkpointing(self) -> None:
        self._switch("gradient-checkpointing", "gradient checkpointing", "checkpointing", "")

    def chunked_loss(self) -> None:
        how = (
            "a part of the tokens after the other under torch.utils.checkpoint, or Liger's fused "
            "cross-entropy"
        )
        resize = remedies.chunked_loss(self.now.memory)
        if resize is not None:
            basis = f"allocations of the logits' size in {remedies.CHUNKS} parts"
            self._take(
                "chunked-loss",
                "the loss in chunks",
                how,
                Source.ESTIMATE,
                self._resized(resize),
                basis,
            )

    def eight_bit_states(self) -> None:
        known = self._optimizers(remedies.EIGHT_BIT_OPTIMIZERS)
        if known:
            how = f"bitsandbytes.optim.{known[0]}8bit in place of {known[0]}"
            basis = (
                "arithmetic on the bytes of the states, 1 byte an element and 4 for each "
                f"{remedies.EIGHT_BIT_BLOCK}"
            )
            after = self._resized(remedies.eight_bit)
            each = self.now.memory.count_of(GRADIENTS)  # it updates one tensor after the other
            update = updates.updated_by(self._update_bytes(after.memory), max(1, each))
            after = replace(after, reworked=(*after.reworked, update))
            self._take(
                "optimizer-8bit", "8-bit optimizer states", how, Source.ESTIMATE, after, basis
            )

    def offloaded_states(self) -> None:
        """Gradients go to the host, which updates its states, all of them in full, and parameters
        come back, once a step.
        """
        known = self._optimizers(remedies.FUSED_OPTIMIZERS)
        if not self.states_bytes:
            return
        gradients = self.now.memory.bytes_of(GRADIENTS)
        more_s = updates.on_the_host_s(gradients, self.states_bytes, efficiency_of(self.tracer.gpu))
        name = known[0] if known else "AdamW"
        how = (
            f"torchao.optim.CPUOffloadOptimizer(model.parameters(), torch.optim.{name}, ...) in "
            "place of the optimizer "
            "(it takes no gradient clipping and no scheduler), or DeepSpeed's offload"
        )
        basis = (
            f"the states' bytes; on a host that moves {updates.HOST_BYTES_PER_S / 1e9:.0f} GB/s "
            "(assumed)"
        )
        after = self._resized(remedies.offloaded, updates.without_update, more_s)
        self._take("offload", "optimizer states on the host", how, Source.ESTIMATE, after, basis)

    def sharded(self) -> None:
        """As few cards as make it fit, else the most."""
        if (self.tracer.device.ranks or 1) > 1 or self.tracer.representative().reports[
            0
        ].world_size > 1:
            return
        whole, peer = (
            remedies.gathered_bytes(self.now.memory),
            efficiency_of(self.tracer.gpu).peer_bytes_per_s,
        )
        exchanged = 2 * self.now.memory.bytes_of(PARAMETERS) + self.now.memory.bytes_of(
            GRADIENTS
        )  # gathered twice
        for cards in _CARDS:
            more_s = exchanged * (cards - 1) / cards * self.now.parts / (peer * LINKS_REACHED[1])
            after = self._resized(remedies.sharded(cards), updates.shared_by(cards), more_s)
            card, more = after.memory.card.among(cards), after.memory.more_bytes + whole
            after = replace(after, memory=replace(after.memory, card=card, more_bytes=more))
            if after.memory.card.verdict(after.memory.play) == Verdict.FITS or cards == _CARDS[-1]:
                parts = (
                    f"1/{cards} of parameters, gradients and states, some blocks whole, NCCL's "
                    "buffers"
                )
                basis = f"{parts}; the exchange hidden by nothing"
                offloads = any(one.code == "offload" for one in self.remedies)
                how = (
                    "torch.distributed.fsdp.fully_shard on each block and on the model, made on "
                    "the host or the meta device"
                )
                how += ", with its CPUOffloadPolicy in place of the optimizer's" if offloads else ""
                self._take("fsdp", f"FSDP over {cards} cards", how, Source.ESTIMATE, after, basis)
                return

    # --- how a change is made

    def _switch(self, code: str, what: str, name: str, how: str) -> None:
        if code in remedies.switched_already(self.found.annotated):
            return self._no(code, what, "the script uses it already")
        self._run(code, what, how, replace(self.now, what_ifs=(*self.now.what_ifs, name)))

    def _run(self, code: str, what: str, how: str, wanted: _State) -> None:
        """By a trial with all that was switched so far; what was estimated before is applied to its
        trace.
        """
        trial_result, trace = self._trial(wanted, wanted.batch_size)
        if trace is None:
            return self._no(code, what, f"the command fails with it: {_failure(trial_result)}")
        how = how or remedies.checkpointing_line(trace)
        if not how:
            return self._no(
                code, what, "no blocks that repeat were found, and no switch of the model's own"
            )
        after = self._traced(wanted, trace)
        taken = self._take(
            code,
            what,
            how,
            Source.ESTIMATE if after.resizes or after.parts > 1 else Source.PREDICTED,
            after,
        )
        if taken and self.searches:
            self.remedies[-1] = replace(
                self.remedies[-1], largest_batch_size=self._largest(after, trace)
            )

    def _extrapolated(self, wanted: _State) -> _State | None:
        """What is wanted at its batch size, where the model of sizes holds there."""
        model, size = self.found.model, wanted.batch_size
        if model is None or size is None or size < min(model.fitted_at):
            return None
        memory = replace(
            self.now.memory,
            program=model.program,
            sizes=model.sizes_at(size),
            annotated=self.found.annotated,
        )
        return self._with(memory, wanted)

    def _traced(self, wanted: _State, trace: Trace) -> _State:
        program = self.tracer.here(program_of(trace))
        memory = replace(
            self.now.memory, program=program, sizes=program.sizes, annotated=annotate(trace)
        )
        return self._with(memory, replace(wanted, kernels={wanted.batch_size or 0: trace.runs}))

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

    def _with(self, memory: Memory, state: _State) -> _State:
        """`state` with the memory of another program, and with what was estimated so far."""
        memory = replace(memory, more_bytes=0)
        for resize in state.resizes:
            memory = memory.resized(resize)
        return replace(state, memory=memory.with_all_gradients() if state.parts > 1 else memory)

    def _take(
        self, code: str, what: str, how: str, source: Source, after: _State, basis: str = ""
    ) -> bool:
        before_bytes, after_bytes = self.now.memory.device_bytes, after.memory.device_bytes
        if not remedies.is_worth_it(before_bytes, after_bytes):
            kind = "predicted" if source is Source.PREDICTED else "estimated"
            higher = remedies.is_worth_it(after_bytes, before_bytes)
            self._no(code, what, f"the {kind} peak is {'higher' if higher else 'no lower'}")
            return False
        self.now = after = replace(after, step_s=self._step_s(after))
        self.remedies.append(
            Remedy(code, what, how, source, after_bytes, self.verdict, after.step_s, basis=basis)
        )
        return True

    def _no(self, code: str, what: str, why: str) -> None:
        self.others.append(NoRemedy(code, what, why))

    def _trial(self, state: _State, batch_size: int | None) -> tuple[TrialResult, Trace | None]:
        """One trial of what was switched, on a card as large as it needs to be, and its trace if it
        completed.
        """
        trial = next(iter(self.tracer.results.values())).trial
        size: dict[str, Setting] = {} if batch_size is None else {self.tracer.unknown: batch_size}
        if state.eval_batch_size is not None:
            size["eval_batch_size"] = state.eval_batch_size
        see_eval = self.tracer.evaluation_of is None or state.eval_batch_size is not None
        settings = {**trial.settings, **size}
        trial = replace(
            trial,
            settings=settings,
            capacity_bytes=None,
            what_ifs=state.what_ifs,
            see_eval=see_eval,
        )
        trial_result = self.tracer.session.run(trial)
        completed = trial_result.outcome is Outcome.COMPLETED
        return trial_result, read_trace(
            trial_result, self.tracer.session.folder
        ) if completed else None

    def _step_s(self, state: _State) -> Estimate | None:
        """Of as many micro-batches as make a step, and one update."""
        step_s = self._with_kernels(state, state.reworked)
        if step_s is not None and state.parts > 1:
            of_all = updates.adding_gradients(
                state.memory.bytes_of(GRADIENTS), state.memory.count_of(GRADIENTS)
            )
            micro_s = self._with_kernels(state, (of_all,))
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
        speed = predict_speed(kernels, self.tracer.gpu, state.batch_size, None, None)
        return speed.step_s if speed is not None else None

    def _largest(self, after: _State, trace: Trace) -> int | None:
        """The largest batch size that would fit, extrapolated from this trace and one at a smaller
        size; None if that fails.
        """
        conclusion, asked = self.answer.conclusion, after.batch_size
        if (
            conclusion is None
            or conclusion.estimate.ignores_batch_size
            or after.resizes
            or after.parts > 1
            or asked is None
        ):
            return None
        small = next((size for size in sorted(conclusion.traced) if size < asked), None)
        if small is None:
            return None
        _, other = self._trial(after, small)
        if other is None:
            return None
        model = fit_size_model(
            {small: self.tracer.here(program_of(other)), asked: self.tracer.here(program_of(trace))}
        )
        if model is None or not model.exact:
            return None
        return ExtrapolatedPeaks(model, after.memory.card).largest(
            small, upper_limit(limits_of(self.tracer))[0]
        )


def _failure(trial_result: TrialResult) -> str:
    failure = trial_result.failure
    if failure is None:
        return trial_result.outcome.value.replace("_", " ")
    return f"{failure.type}: {failure.message.partition(chr(10))[0]}"
