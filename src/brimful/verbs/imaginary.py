"""What predict and tune share on an imaginary card: traces of the command, and the search for the largest batch size."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from brimful.decide.memory.cuda_context import context_of, slack_of
from brimful.decide.memory.fit import Card
from brimful.decide.memory.intervals import interval_for, kind_of
from brimful.decide.memory.program import NOTHING, program_of
from brimful.decide.memory.search_traced import (
    FIRST_SIZE,
    MAX_TRACES,
    MemoryConclusion,
    Traced,
)
from brimful.decide.nccl import with_nccl
from brimful.decide.units import search_in_units
from brimful.errors import BrimfulError, CommandFailed, DoesNotFit, UsageError
from brimful.measure.traces import read_trace, read_traces
from brimful.units import format_bytes
from brimful.values import Budget, Command, Device, Diagnostic, Gpu, Limits, Outcome, Setting, Trial, TrialKind, TrialResult
from brimful.verbs import seen
from brimful.verbs.failures import error_of, require_steps, require_steps_or_memory
from brimful.verbs.session import Session
from brimful_inside.simulator.allocator import settings_in
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.simulator.trace import CardTrace, Trace

EXPECTED_TRACES = 3
GROUP = 8  # what batch sizes are multiples of, where a script takes no others


@dataclass
class Tracer:
    """Traces the command at batch sizes, each once, and keeps what they showed."""

    session: Session
    command: Command
    device: Device
    budget: Budget
    settings: Mapping[str, Setting]  # all but the batch size
    samples: dict[int | None, TrialResult] = field(default_factory=dict)  # None: the command as it stands
    gpu: Gpu | None = None  # the card with the context that this program has on it; known with the first trace
    conclusion: MemoryConclusion | None = None  # of the search, once it is over
    _card: Card | None = None
    _runs: dict[int | None, Sequence[Kernel]] = field(default_factory=dict)

    @property
    def card(self) -> Card:
        """The card with its interval; known once a first trace has told what kind of network it is."""
        assert self._card is not None, "no trace yet"
        return self._card

    def sample(self, batch_size: int | None, limitless: bool = False, searching: bool = False) -> TrialResult:
        """The trial at a batch size (run now, if it was not). `limitless`: the card is as large as it needs to be.

        Raises the errors of `verbs.failures`; when `searching`, not where other sizes trained.
        """
        if batch_size not in self.samples or limitless:
            settings = dict(self.settings) | ({} if batch_size is None else {"batch_size": batch_size})
            trial = Trial(
                command=self.command,
                settings=settings,
                device=self.device,
                kind=TrialKind.TRACE,
                steps=self.session.options.steps or 3,
                time_limit_s=self.session.options.time_limit_s,
                capacity_bytes=None if limitless else self._capacity_bytes(),
            )
            sample = self.session.run(trial, expected_total=max(EXPECTED_TRACES, len(self.samples) + 1))
            if searching:
                require_steps_or_memory(self.session, sample)
            self.samples[batch_size] = sample
            if self._card is None:
                self._card = self._card_for(self.trace(batch_size))
        sample = self.samples[batch_size]
        if not searching and sample.outcome is not Outcome.OUT_OF_DEVICE_MEMORY:  # of the host's memory no card has a say
            require_steps(self.session, sample)
        return sample

    def trace(self, batch_size: int | None) -> Trace | None:
        trace = read_trace(self.samples[batch_size], self.session.folder)
        self._runs[batch_size] = trace.runs if trace is not None else ()
        return trace

    def cards(self, batch_size: int | None) -> tuple[CardTrace, ...]:
        """The traces of all cards of all ranks, where there are several."""
        return read_traces(self.samples[batch_size], self.session.folder)

    def runs(self, batch_size: int | None) -> Sequence[Kernel]:
        """What ran on the card in a step at a batch size that was traced."""
        if batch_size not in self._runs:
            self.trace(batch_size)
        return self._runs[batch_size]

    def traced(self, batch_size: int) -> Traced:
        sample = self.sample(batch_size, searching=True)
        told = None if sample.outcome is Outcome.COMPLETED else _failed_at(self.session, sample, batch_size)
        return Traced(sample.outcome, self.trace(batch_size), seen.dataset_length(sample), self.cards(batch_size), told)

    def _capacity_bytes(self) -> int:
        gpu = self.device.gpu
        assert gpu is not None
        return int(gpu.total_bytes.value - gpu.context_bytes.value)

    def split_over(self, batch_size: int) -> int:
        """Over how many cards of a process a traced batch was split; 1 where it could not be split evenly."""
        over = max((report.split_over for report in self.samples[batch_size].reports), default=1)
        return over if batch_size % over == 0 else 1

    def _communicators(self) -> list[int]:
        """The NCCL groups of the rank that has most of them."""
        reports = [report for sample in self.samples.values() for report in sample.reports]
        return max((report.communicators for report in reports), key=len, default=[])

    def _card_for(self, trace: Trace | None) -> Card:
        gpu = self.device.gpu
        assert gpu is not None
        program = program_of(trace) if trace is not None else NOTHING
        convolves = any("conv" in str(event[1]) for event in program.events if event[0] == "malloc")
        context = with_nccl(context_of(gpu, uses_cudnn=convolves), self._communicators())
        self.gpu = replace(gpu, context_bytes=context)
        return Card(
            budget_bytes=self.budget.bytes,
            context_bytes=int(context.value),
            context_slack_bytes=slack_of(context),
            interval=interval_for(kind_of(program)),
            settings=settings_in({**os.environ, **self.command.environment}),
            capacity_bytes=self._capacity_bytes(),
            calibration=gpu.calibration,
        )

    def dataset_length(self) -> int | None:
        """What the training sampler gives in an epoch, as far as a trial has told."""
        return next((length for s in self.samples.values() if (length := seen.dataset_length(s))), None)

    def worst(self) -> TrialResult:
        """The sample that stands for all in what it noticed besides memory: the last that completed, else the last."""
        completed = [s for s in self.samples.values() if s.outcome is Outcome.COMPLETED]
        return (completed or list(self.samples.values()))[-1]


def _failed_at(session: Session, sample: TrialResult, batch_size: int) -> str:
    """What limits the batch size where the command failed by itself, in the words of its exception if there is one."""
    failure = sample.failure
    if sample.outcome is Outcome.CRASHED and failure is not None and failure.message.strip():
        where = f" ({failure.where})" if failure.where else ""
        words = f"{failure.type.rsplit('.', 1)[-1]}: {failure.message.strip().splitlines()[0]}{where}"
    else:
        words = error_of(session, sample).problem
    return f"the script itself, which fails at batch size {batch_size:,}: {words}"


def first_size(asked: int | None, max_batch_size: int | None, cards: int = 1) -> int:
    """The first batch size to trace: small, and within what the user allows.

    Of several cards each gets two samples at least and as many as the others, should they share the batch.
    """
    least = FIRST_SIZE if cards == 1 else cards * max(2, -(-FIRST_SIZE // cards))
    size = max(1, min(n for n in (least, asked, max_batch_size) if n is not None))
    return size - size % cards if size > cards else size


def search(tracer: Tracer, asked: int | None = None, max_traces: int = MAX_TRACES) -> MemoryConclusion:
    """The largest batch size for the command, by few traces. Raises the errors of a command that does not train."""
    options = tracer.session.options
    start, unit, why = _first_that_trains(tracer, asked)
    limits = Limits(dataset_length=tracer.dataset_length(), max_batch_size=options.max_batch_size)
    generator = search_in_units(tracer.card, limits, max_traces, start, unit, why)
    try:
        size = next(generator)
        while True:
            size = generator.send(tracer.traced(size))
    except StopIteration as end:
        conclusion: MemoryConclusion = end.value
    tracer.conclusion = _told(tracer, conclusion)
    return tracer.conclusion


def _first_that_trains(tracer: Tracer, asked: int | None) -> tuple[int, int, str]:
    """(a small batch size that was traced, the size whose multiples are to be searched, and why those).

    Scripts that want pairs, or groups of four or eight, fail at the usual first size; then multiples of eight are looked at,
    or of the largest power of two below that in the size asked for. Raises the first failure where that is none of the reasons.
    """
    options = tracer.session.options
    start = first_size(asked, options.max_batch_size, tracer.device.cards)
    try:
        tracer.sample(start)
    except CommandFailed:
        unit = math.gcd(asked or GROUP, GROUP)
        ran = start in tracer.samples  # else there is no such command
        if not ran or start % unit == 0 or unit > (options.max_batch_size or unit) or not _trains(tracer, unit):
            raise
        tracer.session.note(
            Diagnostic(
                "multiples",
                f"the command fails by itself at batch size {start} and trains at {unit}",
                f"multiples of {unit} alone are looked at; the largest that fits is one of them",
                "",
            )
        )
        return unit, unit, f"the command failed at batch size {start}: multiples of {unit} were searched"
    over = tracer.split_over(start)
    return start, over, f"a batch is split over {over} cards: sizes that split evenly were searched"


def _trains(tracer: Tracer, batch_size: int) -> bool:
    try:
        tracer.sample(batch_size)
    except BrimfulError:
        return False
    return True


def _told(tracer: Tracer, conclusion: MemoryConclusion) -> MemoryConclusion:
    """The conclusion with `ignores_batch_size` only where the samples say so as well as the memory."""
    belief = conclusion.belief
    if belief.ignores_batch_size:
        sizes = {s.samples_per_step for s in tracer.samples.values() if s.outcome is Outcome.COMPLETED}
        belief = replace(belief, ignores_batch_size=len(sizes) == 1)
    return replace(conclusion, belief=belief)


def told_by_the_search(conclusion: MemoryConclusion) -> list[Diagnostic]:
    """What the search noticed; and what that means for the answer, where no laws were confirmed."""
    explanation = "" if conclusion.belief.method == "laws" else "the answer rests on trials, not on laws of each allocation"
    return [Diagnostic("search", note, explanation, "") for note in conclusion.notes]


def nothing_fits(tracer: Tracer, conclusion: MemoryConclusion) -> DoesNotFit:
    """What to say when not even the smallest batch size fits."""
    smallest = min(conclusion.traced, default=1)
    sample = tracer.samples.get(smallest)
    seen = sample.peak.device_bytes if sample and sample.peak else None
    needs = f"it needs {format_bytes(seen)}" if seen else "it does not fit"
    return DoesNotFit(
        problem=f"no batch size fits: at batch size {smallest} {needs} of device memory",
        explanation=f"the budget is {format_bytes(tracer.budget.bytes)} ({tracer.budget.why})",
        suggestion="a larger card, a smaller model, mixed precision or gradient checkpointing",
    )


def ignores_the_batch_size(command: Command) -> UsageError:
    """What to say when neither memory nor samples change with the batch size."""
    flag = command.found_flags.get("batch_size")
    place = f"the value behind {flag}" if flag else "{batch_size}"
    return UsageError(
        problem="the script ignores the batch size: memory and samples a step are the same at every one",
        explanation=f"{place} does not reach its DataLoader",
        suggestion="look where the script takes its batch size from; `brimful audit` shows what the loader really gives",
    )
