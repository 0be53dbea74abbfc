"""The trials of a command on an imaginary card, each size once, and what is read of their
traces.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from brimful.ask.shown_once import first_to_show_whole
from brimful.decide import loaders_seen
from brimful.decide.memory.search_traced import FIRST_SIZE, MemoryConclusion
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.speed.kernels import KernelModel, ScaledKernels, fit_kernels
from brimful.measure.host import free_bytes
from brimful.measure.traces import read_trace, read_traces
from brimful.trials.locate import Located, locate
from brimful.trials.results import require_steps, require_steps_or_memory, trained
from brimful.trials.session import Session
from brimful.trials.start import following
from brimful.values import (
    Command,
    Device,
    Limits,
    Outcome,
    Setting,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.simulator.trace import CardTrace, Outside, Trace
from brimful_inside.wire import Ends

EXPECTED_TRACES = 3
LARGEST_AT = 4  # steps before that of the largest batch, where others are as drawn
# What a trial in search of another setting may take of this computer (assumed): so many times the
# longest before it, or so many seconds, and this share of the memory that is free.
HOST_TIMES, HOST_LEAST_S, HOST_SHARE = 8, 30.0, 0.5


class TracesRead(NamedTuple):
    """What is kept of a trial's traces, which may be large themselves."""

    programs: tuple[Program, ...]  # of all cards of all ranks, with the sizes of the trial's card
    whole: bool  # there are traces, and none is cut off
    kernels: Sequence[Kernel]  # of a step on the fullest card
    outside: Sequence[Outside]  # what ran there outside of the training


@dataclass
class Trials:
    """The trials at batch sizes, or at values of another setting. `None` stands for the size of the
    command as it stands.
    """

    session: Session
    command: Command
    device: Device  # where they run
    settings: Mapping[str, Setting]  # all but the one that sizes are of
    time_loader: int | None = None  # the first one that trains times batches of up to so many
    others: tuple[tuple[int, int], ...] = ()  # capabilities of other cards they may speak for
    unknown: str = BATCH_SIZE  # the setting that sizes are of
    asked: int | None = None  # the size in question
    # The trial that showed what others end before (`shown_once`).
    shown_whole: TrialResult | None = None
    results: dict[int | None, TrialResult] = field(default_factory=dict)
    _read: dict[int | None, TracesRead] = field(default_factory=dict)
    _fitted: dict[tuple, KernelModel | ScaledKernels | None] = field(default_factory=dict)

    @property
    def in_batches(self) -> bool:
        return self.unknown == BATCH_SIZE

    @property
    def alike(self) -> set[tuple[int, int]]:
        """Capabilities for which all trials so far speak, the card's own among them."""
        spoken_for = [
            {(major, minor) for major, minor in report.alike}
            for result in self.results.values()
            for report in result.reports
        ]
        assert self.device.gpu is not None
        return {self.device.gpu.capability} | (
            set.intersection(*spoken_for) if spoken_for else set()
        )

    # --- running

    def result(
        self, size: int | None, limitless: bool = False, searching: bool = False
    ) -> TrialResult:
        """The trial at a size (run now, if it was not). `limitless`: the card is as large as it
        needs to be.

        Raises the errors of `trials.results`; when `searching`, not where other sizes trained.
        """
        if size not in self.results or limitless:
            trial = self.trial_at(size, limitless)
            result = self.session.run(
                self._within_host(trial) if searching and not self.in_batches else trial,
                expected_total=max(EXPECTED_TRACES, len(self.results) + 1),
            )
            if searching:
                require_steps_or_memory(self.session, result)
            self.results.pop(size, None)  # the last trial is the last of them
            self.results[size] = result
            self._read.pop(size, None)
        result = self.results[size]
        # Of the host's memory no card has a say.
        if not searching and result.outcome is not Outcome.OUT_OF_DEVICE_MEMORY:
            require_steps(self.session, result)
        return result

    def learn_what_is_shown_once(self) -> None:
        """Before a search begins, whose traces have to be comparable. A line that is to be reached
        may come after all that is shown once."""
        shows_all = self.others or self.session.options.reach
        if self.shown_whole is None and self.in_batches and not shows_all:
            self.shown_whole = first_to_show_whole(self.session.results, self.session.folder)

    def trial_at(self, size: int | None, limitless: bool = False) -> Trial:
        """What is traced at a size. `limitless`: on a card as large as it needs to be."""
        return self._trial(self.command, size, limitless)

    def _trial(self, command: Command, size: int | None, limitless: bool = False) -> Trial:
        if not self.results:
            self.learn_what_is_shown_once()
        return Trial(
            command=command,
            settings=self.settings_at(size),
            device=self.device,
            kind=TrialKind.TRACE,
            others=self.others,
            time_loader=None if any(map(trained, self.session.results)) else self.time_loader,
            watches_branches=not any(map(trained, self.session.results)),
            reach=self.session.options.reach,
            ends=Ends(
                steps=self.session.options.steps or 3,
                see_eval=self._is_to_be_whole(size),
            ),
            capacity_bytes=None if limitless else capacity_bytes(self.device),
        )

    def _is_to_be_whole(self, size: int | None) -> bool:
        """An evaluation is shown at the size in question as well."""
        shown = self.shown_whole
        return shown is None or ("eval" in shown.phases and size in (None, self.asked))

    def _within_host(self, trial: Trial) -> Trial:
        """The trial with limits of what it may take of this computer."""
        longest_s = max((result.duration_s for result in self.completed().values()), default=0.0)
        return replace(
            trial,
            time_limit_s=max(HOST_LEAST_S, HOST_TIMES * longest_s),
            host_limit_bytes=int(HOST_SHARE * free_bytes()),
        )

    def locate(self, asked: int | None, given: Mapping[str, Setting]) -> Located:
        """Finds where the batch size of a script without a flag is set; from here on it is set
        there.
        """
        options = self.session.options
        # `run` tries the size that it is given: both have to see the same
        size = asked or first_size(None, options.max_batch_size, self.device.cards)
        located = locate(
            self.session, self.command, self._trial, size, options.batch_size_from, given
        )
        self.command = located.command
        self.results.update(located.results)
        # As a search keeps them: by what the loader gives, where the data set is smaller.
        self.results = {self.effective(size): tried for size, tried in self.results.items()}
        return located

    def keep_as_it_stands(self) -> None:
        """Where the search for the place of the batch size was cut short: its first trial is that
        of the command as it stands."""
        for result in filter(trained, self.session.results):
            if not self.results and result.trial.find_places and result.trial.device == self.device:
                self.results[None] = result

    def outcome_at(self, size: int | None) -> Outcome | None:
        """None where it was not looked at."""
        return self.results[size].outcome if size in self.results else None

    def settings_at(self, size: int | None) -> dict[str, Setting]:
        """All settings at a size, those that follow it included."""
        settings = dict(self.settings) if size is None else {**self.settings, self.unknown: size}
        return settings | following(self.command, self.settings, settings.get(BATCH_SIZE))

    # --- reading

    def trace(self, size: int | None) -> Trace | None:
        """The trace of the fullest card."""
        return read_trace(self.results[size], self.session.folder)

    def traces(self, size: int | None) -> tuple[CardTrace, ...]:
        """The traces of all cards of all ranks."""
        return read_traces(self.results[size], self.session.folder)

    def read(self, size: int | None) -> TracesRead:
        if size not in self._read:
            traces = [card.trace for card in self.traces(size)]
            fullest = traces[0] if len(traces) == 1 else self.trace(size)
            self._read[size] = TracesRead(
                tuple(map(program_of, traces)),
                bool(traces) and all(trace.whole for trace in traces),
                fullest.runs if fullest is not None else (),
                fullest.outside if fullest is not None else (),
            )
        return self._read[size]

    def outside(self, size: int | None) -> list[Outside]:
        """The evaluations, and what ran between two passes: of the trace nearest to a size that
        shows them.
        """
        nearest: dict[str, list[Outside]] = {}
        for traced in sorted(
            self.completed(), key=lambda other: abs((other or 0) - (size or 0)), reverse=True
        ):
            works = self.read(traced).outside
            nearest |= {work.name: [w for w in works if w.name == work.name] for work in works}
        return [work for works in nearest.values() for work in works]

    def kernel_model(
        self, sizes: Iterable[int | None], alike: bool
    ) -> KernelModel | ScaledKernels | None:
        """The kernels of a step at any size, by those that were traced at `sizes`, which do not
        depend on the card.
        """
        key = (*sizes, alike)
        if key not in self._fitted:
            self._fitted[key] = fit_kernels(
                {size or 0: self.read(size).kernels for size in sizes}, alike
            )
        return self._fitted[key]

    # --- what they showed besides memory

    def dataset_length(self) -> int | None:
        """Samples that the training sampler gives in an epoch, as far as a trial has shown it; no
        limit to another unknown.
        """
        lengths = map(loaders_seen.dataset_length, self.results.values() if self.in_batches else ())
        return next(filter(None, lengths), None)

    def limits(self) -> Limits:
        most = self.session.options.max_batch_size if self.in_batches else None
        return Limits(dataset_length=self.dataset_length(), max_batch_size=most)

    def effective(self, size: int | None) -> int | None:
        """What the loader gives where the script asks for so much: no more than the data
        set has.
        """
        length = self.dataset_length()
        return size if size is None or length is None else min(size, length)

    def in_force(self, conclusion: MemoryConclusion | None, size: int | None) -> int | None:
        """As `effective`, and no more than the script's loader makes, or always that where it
        ignores the size.
        """
        size, estimate = self.effective(size), conclusion.estimate if conclusion else None
        if size is None or estimate is None or estimate.loader_cap is None:
            return size
        return (
            estimate.loader_cap if estimate.ignores_batch_size else min(size, estimate.loader_cap)
        )

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


def capacity_bytes(device: Device) -> int:
    """For segments: the card's memory without the context."""
    assert device.gpu is not None
    return int(device.gpu.total_bytes.value - device.gpu.context_bytes.value)


def first_size(asked: int | None, max_batch_size: int | None, cards: int) -> int:
    """The first batch size to trace: small, and within what the user allows.

    Of several cards each gets two samples at least and as many as the others, should they share the
    batch.
    """
    least = FIRST_SIZE if cards == 1 else cards * max(2, -(-FIRST_SIZE // cards))
    size = max(1, min(n for n in (least, asked, max_batch_size) if n is not None))
    return size - size % cards if size > cards else size
