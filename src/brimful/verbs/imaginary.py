"""What predict and tune share on an imaginary card: traces of the command, and the search for the
largest batch size.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from brimful.command import fill, placeholders
from brimful.decide.loaders_seen import dataset_length, largest_batch
from brimful.decide.memory.bracket import run_search
from brimful.decide.memory.fit import Card, Play, context_of, slack_of
from brimful.decide.memory.intervals import WITH_CONVOLUTIONS, interval_for, kind_of
from brimful.decide.memory.known_traces import Traced
from brimful.decide.memory.search_traced import FIRST_SIZE, MemoryConclusion, search_largest
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.speed.kernels import KernelModel, ScaledKernels, fit_kernels
from brimful.errors import CommandFailed, DoesNotFit
from brimful.measure.traces import read_trace, read_traces
from brimful.units import format_bytes, noun_of
from brimful.values import (
    Budget,
    Command,
    Device,
    Diagnostic,
    Gpu,
    Limits,
    Outcome,
    Setting,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful.verbs.locate import Located, locate
from brimful.verbs.long_evaluation import shown_whole, training_of
from brimful.verbs.results import require_steps, require_steps_or_memory, script_error, trained
from brimful.verbs.session import Session
from brimful.verbs.start import following
from brimful_inside.simulator.allocator_settings import settings_in
from brimful_inside.simulator.program import NOTHING, Program, joined, program_of
from brimful_inside.simulator.replay import worst_of
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.simulator.trace import CardTrace, Outside, Trace

EXPECTED_TRACES = 3
FIRST_VALUES = (
    FIRST_SIZE,
    64,
    256,
    1024,
)  # of any other setting: images of 5 pixels are smaller than kernels
GROUP = 8  # what batch sizes are multiples of, where a script takes no others


@dataclass
class Tracer:
    """Traces the command at batch sizes, or at values of another unknown, each once, and keeps what
    they showed.
    """

    session: Session
    command: Command
    device: Device
    budget: Budget
    settings: Mapping[str, Setting]  # all but the unknown
    time_loader: int | None = (
        # the first trial that trains times the training loader, in batches of up to so many samples
        None
    )
    others: tuple[
        tuple[int, int], ...
    ] = ()  # capabilities of other cards that its trials may speak for
    unknown: str = BATCH_SIZE  # the setting that sizes are of
    traced_on: Device | None = (
        None  # where trials run on another card, on which all is done in the same way
    )
    begins_with: tuple[
        int, ...
    ] = ()  # sizes that were traced for that one: its own search begins with them
    asked: int | None = None  # the size in question
    evaluation_of: TrialResult | None = (
        None  # the trial that showed it whole, where others end before it (`long_evaluation`)
    )
    results: dict[int | None, TrialResult] = field(
        default_factory=dict
    )  # None: the command as it stands
    _judged_by: int | None = None
    _kernels: dict[int | None, Sequence[Kernel]] = field(default_factory=dict)
    _outside: dict[int | None, Sequence[Outside]] = field(default_factory=dict)
    _fitted: dict[tuple, KernelModel | ScaledKernels | None] = field(default_factory=dict)
    _programs: dict[int | None, tuple[Program, ...]] = field(default_factory=dict)  # as traced

    @property
    def in_batches(self) -> bool:
        return self.unknown == BATCH_SIZE

    def on(self, device: Device, budget: Budget) -> Tracer:
        """The same traces, read for another card that does all in the same way."""
        begins_with = (
            tuple(sorted(size for size in self.results if size is not None))
            if self.in_batches
            else ()
        )
        return replace(
            self,
            device=device,
            budget=budget,
            traced_on=self.traced_on or self.device,
            begins_with=begins_with,
        )

    @property
    def alike(self) -> set[tuple[int, int]]:
        """Capabilities for which all trials so far speak, the card's own among them."""
        seen = [
            {(major, minor) for major, minor in report.alike}
            for one in self.results.values()
            for report in one.reports
        ]
        assert self.device.gpu is not None
        return {self.device.gpu.capability} | (set.intersection(*seen) if seen else set())

    def result(
        self, batch_size: int | None, limitless: bool = False, searching: bool = False
    ) -> TrialResult:
        """The trial at a batch size (run now, if it was not). `limitless`: the card is as large as
        it needs to be.

        Raises the errors of `verbs.results`; when `searching`, not where other sizes trained.
        """
        if batch_size not in self.results or limitless:
            trial = self._trial(self.command, batch_size, limitless)
            result = self.session.run(
                trial, expected_total=max(EXPECTED_TRACES, len(self.results) + 1)
            )
            if searching:
                require_steps_or_memory(self.session, result)
            self.results[batch_size] = result
            self._programs.pop(batch_size, None)
        result = self.results[batch_size]
        if (
            not searching and result.outcome is not Outcome.OUT_OF_DEVICE_MEMORY
        ):  # of the host's memory no card has a say
            require_steps(self.session, result)
        return result

    def look_at_the_evaluation(self) -> None:
        """Before a search begins, whose traces have to be comparable."""
        if (
            self.evaluation_of is None
            and self.in_batches
            and self.traced_on is None
            and not self.others
        ):
            self.evaluation_of = shown_whole(self.session.results, self.session.folder)

    def _trial(self, command: Command, batch_size: int | None, limitless: bool = False) -> Trial:
        if not self.results:
            self.look_at_the_evaluation()
        return Trial(
            command=command,
            settings=self.settings_at(batch_size),
            device=self.traced_on or self.device,
            kind=TrialKind.TRACE,
            others=self.others,
            time_loader=None if any(map(trained, self.session.results)) else self.time_loader,
            steps=self.session.options.steps or 3,
            see_eval=self.evaluation_of is None or batch_size in (None, self.asked),
            capacity_bytes=None if limitless else _capacity_bytes(self.traced_on or self.device),
        )

    def locate(self, asked: int | None, given: Mapping[str, Setting]) -> Located:
        """Finds where the batch size of a script without a flag is set; from here on it is set
        there.
        """
        options = self.session.options
        first = _first_size(asked, options.max_batch_size, self.device.cards)
        located = locate(
            self.session, self.command, self._trial, first, options.batch_size_from, given
        )
        self.command = located.command
        self.results.update(located.results)
        return located

    def settings_at(self, batch_size: int | None) -> dict[str, Setting]:
        """All settings at a batch size, those that follow it included."""
        settings = (
            dict(self.settings)
            if batch_size is None
            else {**self.settings, self.unknown: batch_size}
        )
        return settings | following(self.command, self.settings, settings.get(BATCH_SIZE))

    def traced(self, batch_size: int) -> Traced:
        """What a trial shows to a search. Of another unknown memory alone says whether the script
        follows it.
        """
        result = self.result(batch_size, searching=True)
        completed = result.outcome is Outcome.COMPLETED
        return Traced(
            outcome=result.outcome,
            traces=tuple(card.trace for card in self.cards(batch_size)),
            program=training_of(joined_of(self, batch_size), self.evaluation_of),
            dataset_length=dataset_length(result) if self.in_batches else None,
            failure=None
            if completed
            else script_error(self.session, result, noun_of(self.unknown), batch_size),
            samples_per_step=result.samples_per_step if self.in_batches else None,
            batch=largest_batch(result) if self.in_batches else None,
        )

    def trace(self, batch_size: int | None) -> Trace | None:
        """The trace of the fullest card."""
        return read_trace(self.results[batch_size], self.session.folder)

    def cards(self, batch_size: int | None) -> tuple[CardTrace, ...]:
        """The traces of all cards of all ranks. What is asked for again is kept of them: they may
        be large.
        """
        cards = read_traces(self.results[batch_size], self.session.folder)
        if len(cards) == 1:
            self._kernels[batch_size] = cards[0].trace.runs
            self._outside[batch_size] = cards[0].trace.outside
        if batch_size not in self._programs:
            self._programs[batch_size] = tuple(program_of(card.trace) for card in cards)
        return cards

    def kernels(self, batch_size: int | None) -> Sequence[Kernel]:
        """What ran on the card in a step at a batch size that was traced."""
        if batch_size not in self._kernels:
            trace = self.trace(batch_size)
            self._kernels[batch_size] = trace.runs if trace is not None else ()
        return self._kernels[batch_size]

    def outside(self, batch_size: int | None) -> list[Outside]:
        """The evaluations, and what ran between two passes: of the trace nearest to a batch size
        that shows them.
        """
        nearest: dict[str, list[Outside]] = {}
        for size in sorted(
            self.completed(), key=lambda size: abs((size or 0) - (batch_size or 0)), reverse=True
        ):
            works = self._shown_outside(size)
            nearest |= {
                name: [work for work in works if work.name == name]
                for name in {work.name for work in works}
            }
        return [work for works in nearest.values() for work in works]

    def _shown_outside(self, batch_size: int | None) -> Sequence[Outside]:
        if batch_size not in self._outside:
            trace = self.trace(batch_size)
            self._outside[batch_size] = trace.outside if trace is not None else ()
        return self._outside[batch_size]

    def kernel_model(
        self, sizes: Iterable[int | None], alike: bool
    ) -> KernelModel | ScaledKernels | None:
        """The kernels of a step at any batch size, by those that were traced at `sizes`, which do
        not depend on the card.
        """
        key = (*sizes, alike)
        if key not in self._fitted:
            self._fitted[key] = fit_kernels(
                {size or 0: self.kernels(size) for size in sizes}, alike
            )
        return self._fitted[key]

    def programs(self, batch_size: int | None) -> tuple[Program, ...]:
        """The programs of all cards of all ranks, with the sizes of this kind of card."""
        if batch_size not in self._programs:
            self.cards(batch_size)
        return tuple(map(self.here, self._programs[batch_size]))

    def here(self, program: Program) -> Program:
        """The program of a trace with the sizes of this kind of card."""
        gpu = self.device.gpu
        return (
            program
            if self.traced_on is None or gpu is None
            else program.on_card(gpu.capability, gpu.multiprocessors)
        )

    def play(self, batch_size: int | None) -> Play | None:
        """The replay of the traces at a batch size, the worst of them. None without a trace."""
        programs = self.programs(batch_size)
        return (
            (lambda room: worst_of([self.card.replay(one, room) for one in programs]))
            if programs
            else None
        )

    @cached_property
    def gpu(self) -> Gpu:
        """The card with the context that this program has on it, by the first trace."""
        assert self.device.gpu is not None
        return with_its_context(self.device.gpu, self.results[self._basis], self._first)

    @cached_property
    def card(self) -> Card:
        """The card with the interval of this kind of network, by the first trace."""
        context = self.gpu.context_bytes
        return Card(
            budget_bytes=self.budget.bytes,
            context_bytes=int(context.value),
            context_slack_bytes=slack_of(context),
            interval=interval_for(kind_of(self._first)),
            settings=settings_in({**os.environ, **self.command.environment}),
            capacity_bytes=_capacity_bytes(self.device),
            calibration=self.gpu.calibration,
        )

    @property
    def _basis(self) -> int | None:
        """The first that trained, as far as one has, or the size given to `judge_by`."""
        return (
            next(iter(self.completed() or self.results))
            if self._judged_by is None
            else self._judged_by
        )

    @cached_property
    def _first(self) -> Program:
        programs = self.programs(self._basis)
        if len(programs) < 2:
            return programs[0] if programs else NOTHING
        trace = self.trace(self._basis)
        return self.here(program_of(trace)) if trace is not None else NOTHING

    def judge_by(self, size: int) -> bool:
        """From here on the kind of network, by which the card's interval goes, is that at this
        size. Whether that changes it.

        How much cuDNN's workspaces matter is judged by small batches: as a prediction of the
        command with this value does, a further trial has one, where there are convolutions and the
        command takes a batch size.
        """
        before, judge, self._judged_by = self.card, self, size
        for name in ("gpu", "card", "_first"):
            self.__dict__.pop(name, None)
        if (
            not self.in_batches
            and BATCH_SIZE in placeholders(self.command)
            and kind_of(self._first) in WITH_CONVOLUTIONS
        ):
            others = {
                name: value for name, value in self.settings_at(size).items() if name != BATCH_SIZE
            }
            judge = Tracer(self.session, self.command, self.device, self.budget, others)
            first_that_trains(judge, None)
        self.gpu, self.card = judge.gpu, judge.card
        return self.card != before

    def dataset_length(self) -> int | None:
        """Samples that the training sampler gives in an epoch, as far as a trial has shown it; no
        limit to another unknown.
        """
        if not self.in_batches:
            return None
        return next(
            (length for result in self.results.values() if (length := dataset_length(result))), None
        )

    def effective(self, batch_size: int | None) -> int | None:
        """What the loader gives where the script asks for so much: no more than the data set has."""
        length = self.dataset_length()
        return batch_size if batch_size is None or length is None else min(batch_size, length)

    def in_force(self, conclusion: MemoryConclusion | None, batch_size: int | None) -> int | None:
        """As `effective`, and no more than the script's loader makes, or always that where it
        ignores the size.
        """
        size, cap = (
            self.effective(batch_size),
            conclusion.estimate.loader_cap if conclusion else None,
        )
        if size is None or cap is None or conclusion is None:
            return size
        return cap if conclusion.estimate.ignores_batch_size else min(size, cap)

    def completed(self) -> dict[int | None, TrialResult]:
        return {
            size: result
            for size, result in self.results.items()
            if result.outcome is Outcome.COMPLETED
        }

    def representative(self) -> TrialResult:
        """The result that stands for all in what it noticed besides memory: the last that
        completed, else the last.
        """
        return list((self.completed() or self.results).values())[-1]


def _capacity_bytes(device: Device) -> int:
    assert device.gpu is not None
    return int(device.gpu.total_bytes.value - device.gpu.context_bytes.value)


def with_its_context(gpu: Gpu, result: TrialResult, program: Program) -> Gpu:
    """The card with the context that a trial's program has on it: with cuDNN's for convolutions,
    and NCCL's for its groups.
    """
    uses_cudnn = any("conv" in name for name in program.operations)
    communicators = max((report.communicators for report in result.reports), key=len, default=[])
    return replace(gpu, context_bytes=context_of(gpu, uses_cudnn, communicators))


def search(tracer: Tracer, asked: int | None) -> MemoryConclusion:
    """The largest size for the command, by few traces; it goes into the record.

    Raises the errors of a command that does not train.
    """
    first, multiple_of = first_that_trains(tracer, asked)
    tracer.asked = asked
    tracer.look_at_the_evaluation()

    def searched() -> MemoryConclusion:
        begins_with, unknown = tracer.begins_with, tracer.unknown
        steps = search_largest(
            tracer.card, limits_of(tracer), first, multiple_of, begins_with, unknown, asked
        )
        return run_search(steps, tracer.traced)

    conclusion = searched()
    largest = conclusion.estimate.largest_batch_size
    if (
        not tracer.in_batches
        and largest is not None
        and largest in tracer.completed()
        and tracer.judge_by(largest)
    ):
        conclusion = searched()  # what was traced is not traced again
    tracer.session.keep(conclusion.estimate)
    return conclusion


def limits_of(tracer: Tracer) -> Limits:
    most = tracer.session.options.max_batch_size if tracer.in_batches else None
    return Limits(dataset_length=tracer.dataset_length(), max_batch_size=most)


def joined_of(tracer: Tracer, batch_size: int) -> Program | None:
    """The program of all cards at a size that was traced; None without a trace."""
    programs = tracer.programs(batch_size)
    return joined(programs) if programs else None


def _first_size(asked: int | None, max_batch_size: int | None, cards: int) -> int:
    """The first batch size to trace: small, and within what the user allows.

    Of several cards each gets two samples at least and as many as the others, should they share the
    batch.
    """
    least = FIRST_SIZE if cards == 1 else cards * max(2, -(-FIRST_SIZE // cards))
    size = max(1, min(n for n in (least, asked, max_batch_size) if n is not None))
    return size - size % cards if size > cards else size


def first_that_trains(tracer: Tracer, asked: int | None) -> tuple[int, int]:
    """(A small batch size that was traced, the size whose multiples to search.)

    Scripts that want pairs, or groups of four or eight, fail at the usual first size; then brimful
    tries a group of eight, and multiples alone where that trains. Raises the first failure where
    that is not the reason.
    """
    if not tracer.in_batches:
        return _first_value(tracer)
    options = tracer.session.options
    start = _first_size(
        None, options.max_batch_size, tracer.device.cards
    )  # whatever was asked: the answer is then the same
    try:
        result = tracer.result(start)
    except CommandFailed:
        ran = start in tracer.results  # else there is no such command
        if not ran or tracer.results[start].outcome is Outcome.TIMED_OUT:
            raise
        if start % GROUP and (options.max_batch_size or GROUP) >= GROUP and _trains(tracer, GROUP):
            return GROUP, _multiples(tracer, GROUP, start)
        if asked is not None and asked < start and _trains(tracer, asked):
            return asked, 1
        raise
    over = max((report.split_over for report in result.reports), default=1)  # cards of a process
    return start, over if start % over == 0 else 1


def _first_value(tracer: Tracer) -> tuple[int, int]:
    """As `first_that_trains`, of any other setting: a script may want more than a few, or multiples
    of a power of two.
    """
    own = tracer.command.given.get(tracer.unknown)
    values = (
        FIRST_VALUES if not isinstance(own, int) or own in FIRST_VALUES else (*FIRST_VALUES, own)
    )
    first = next((value for value in values if _trains(tracer, value)), None)
    if first is None:
        tracer.result(values[0])  # raises the first failure
    if first in (None, FIRST_SIZE) or _trains(tracer, first + 1):
        return first or FIRST_SIZE, 1
    return first, _multiples(tracer, first, first + 1)


def _multiples(tracer: Tracer, first: int, failed: int) -> int:
    """What sizes have to be multiples of, where `first` trains and the size `failed` does not; it
    is noted.
    """
    unit = first
    while unit > 2 and unit % 2 == 0 and _trains(tracer, first + unit // 2):
        unit //= 2
    problem = f"the script trains at {noun_of(tracer.unknown)} {first} and fails at {failed}"
    explanation = f"brimful tries multiples of {unit} alone; the largest that fits is one of them"
    tracer.session.note(Diagnostic("multiples", problem, explanation, ""))
    return unit


def _trains(tracer: Tracer, size: int) -> bool:
    """Raises what no other size can mend."""
    try:
        tracer.result(size)
    except CommandFailed:
        if size not in tracer.results or tracer.results[size].outcome is Outcome.TIMED_OUT:
            raise
        return False
    return True


def search_notes(conclusion: MemoryConclusion) -> list[Diagnostic]:
    """What the search noticed; and what that means for the answer, where no trace confirmed the
    extrapolated sizes.
    """
    extrapolated = conclusion.estimate.method == "extrapolated"
    explanation = (
        ""
        if extrapolated
        else "the answer rests on trials, not on the extrapolated size of each allocation"
    )
    return [Diagnostic("search", note, explanation, "") for note in conclusion.notes]


def nothing_fits(tracer: Tracer, conclusion: MemoryConclusion) -> DoesNotFit:
    """The error where the search names no batch size."""
    smallest = min(conclusion.traced, default=1)
    result = tracer.results.get(smallest)
    peak = result.peak.device_bytes if result and result.peak else None
    words, noun = (
        shlex.join(fill(tracer.command, tracer.settings_at(smallest))),
        noun_of(tracer.unknown),
    )
    needs = f"it needs {format_bytes(peak)}" if peak else "it does not fit"
    return DoesNotFit(
        problem=f"no {noun} fits: at {noun} {smallest} {needs} of device memory",
        explanation=f"the budget is {format_bytes(tracer.budget.bytes)} ({tracer.budget.why})",
        suggestion=f"what would make it fit: brimful predict, with the same options, -- {words}",
    )
