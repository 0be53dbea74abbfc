"""The answers of the verbs, and the record in which all of it can be read back."""

from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module

from brimful.units import format_bytes
from brimful.values.check import Check
from brimful.values.comparison import Comparison
from brimful.values.estimates import (
    Breakdown,
    CardPeak,
    Epoch,
    Loading,
    MemoryEstimate,
    PeakEstimate,
    PredictedSpeed,
    SpeedEstimate,
    Verdict,
)
from brimful.values.executions import Run, TrialResult
from brimful.values.given import (
    Budget,
    Command,
    Device,
    Diagnostic,
    EffectiveSetting,
    Estimate,
    Gpu,
    HostRoom,
    Machine,
    Setting,
    Source,
)
from brimful_inside.wire import Asked, NotRun, PhasePeak, Place, WorstBatch


@dataclass(frozen=True)
class EffectiveBatch:
    """What the script really did."""

    loader_batch_size: int | None
    batches_per_step: float | None
    ranks: int
    samples_per_step: float | None
    # assumed: without a DataLoader they are counted by the model's input
    samples_source: Source = Source.MEASURED


@dataclass(frozen=True)
class Audit:
    requested: dict[str, Setting]
    effective: EffectiveBatch
    findings: tuple[Diagnostic, ...]
    loading_share: float | None
    step_s: float | None  # median of the measured steps
    peak: PhasePeak | None
    phases: dict[str, PhasePeak]
    not_seen: tuple[str, ...]
    peak_source: Source = Source.MEASURED  # of all peaks; predicted on an imaginary card
    notes: tuple[str, ...] = ()  # what the trial showed besides: "the script used no accelerator"
    # where there are several imaginary ones: "rank 0, cuda:0"
    cards: dict[str, PhasePeak] = field(default_factory=dict)
    asked: tuple[Asked, ...] = ()  # where what is requested stands, and what becomes of it
    host: HostRoom | None = None  # where it was asked for


class Objective(StrEnum):
    THROUGHPUT = "throughput"
    LARGEST = "largest"


# the problem of a point where the work was told to stop before it
NOT_LOOKED_AT = "it was not looked at"


@dataclass(frozen=True)
class Answer:
    """What holds at a point: values of settings on a card, or on so many of it in one machine or
    several. Each number says whether it was measured there, or predicted.
    """

    settings: dict[str, Setting]
    verdict: Verdict | None = None  # None: not known, or the command fails there, by `problem`
    # of the memory that the budget is of, with uneven batches over an epoch; None where a trial ran
    # out
    peak_bytes: Estimate | None = None
    allocated_bytes: int | None = None  # of that peak
    # of uneven batches: that of the largest samples alone, where no epoch is known near this point
    is_least: bool = False
    # of an imaginary card: at this very point; else extrapolated from traces of others
    traced: bool | None = None
    samples_per_s: Estimate | None = None  # over all ranks
    tokens_per_s: Estimate | None = None  # where one of the settings is the length of the samples
    step_s: Estimate | None = None
    effective_batch: Estimate | None = None  # samples in an update, over all ranks
    updates_per_epoch: Estimate | None = None
    epoch_s: Estimate | None = None  # of its training
    slow_loading: bool = False  # this machine loads more slowly than that
    gpu: Gpu | None = None  # where several were asked about
    cards: int = 1
    machines: int = 1  # that these cards are in
    unused: int = 0  # of its cards, those that the command does not use
    largest: int | None = None  # that fits there: the batch size, or what else was asked for
    price_per_h: Estimate | None = None  # US dollars, of all its cards
    epoch_price: Estimate | None = None  # US dollars
    best: bool = False  # the fastest that fits; where none does, the one that takes least
    problem: str = ""  # why the command fails there

    @property
    def batch_size(self) -> int | None:
        size = self.settings.get("batch_size")
        return size if isinstance(size, int) else None

    @property
    def fits(self) -> bool | None:
        """None: not known."""
        return None if self.verdict is None else self.verdict == Verdict.FITS

    @property
    def label(self) -> str:
        """ "h100:8x4": as `--gpu` takes it."""
        each, name = self.cards // self.machines, self.gpu.key if self.gpu else ""
        if self.machines > 1:
            return f"{name}:{each}x{self.machines}"
        return name if each == 1 else f"{name}:{each}"

    @property
    def memory_text(self) -> str | None:
        """ "18.9 GiB"; "over 18.9 GiB" where it is at least that; None where it is not known."""
        peak = self.peak_bytes
        return None if peak is None else "over " * self.is_least + format_bytes(int(peak.value))


@dataclass(frozen=True)
class Plan:
    """The chosen settings, and the command to paste."""

    objective: Objective
    settings: tuple[EffectiveSetting, ...]
    command_line: str  # to paste, environment included
    verified: bool  # these settings were run in a trial that fitted
    trials: int
    out_of_memory_trials: int
    peak_bytes: Estimate | None = None
    samples_per_s: Estimate | None = None
    # the user's own settings, measured in the same session
    baseline_samples_per_s: Estimate | None = None
    # how many times as fast as these, both run by turns; None where it is these, or not known
    gain: Estimate | None = None
    partial: str | None = None  # what ended the search before its time; None: it came to its end
    warnings: tuple[Diagnostic, ...] = ()
    sizes: tuple[Answer, ...] = ()  # by batch size, ascending
    # setting -> where brimful sets it in a script without a flag
    places: dict[str, Place] = field(default_factory=dict)
    # digests of the files that the command loaded or names, by path
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Remedy:
    """A change that lowers the peak, made after those before it, and what the card then shows."""

    # "expandable-segments", "mixed-precision", "gradient-checkpointing", "accumulation-2", ...
    code: str
    what: str  # "mixed precision"
    how: str  # what to write in the script, or to set
    source: Source  # predicted: a trial or its replay has it; estimate: arithmetic on what was seen
    device_bytes: int  # the peak
    verdict: Verdict
    # of a step with the same effective batch; None where it is not predicted
    step_s: Estimate | None = None
    largest_batch_size: int | None = None  # that fits then; None where it was not worked out
    basis: str = ""  # what an estimate rests on


@dataclass(frozen=True)
class NoRemedy:
    """A change that was tried and does not help, or cannot be tried."""

    code: str
    what: str
    why: str


@dataclass(frozen=True)
class WhatIf:
    """What would make it fit: changes one on top of the other, in the order of what they cost in
    time, until it does.
    """

    remedies: tuple[Remedy, ...] = ()
    others: tuple[NoRemedy, ...] = ()
    # Where batches are uneven: what helps in place of expandable segments, each alone.
    instead: tuple[Remedy, ...] = ()


@dataclass(frozen=True)
class Solved:
    """The largest value of a setting that fits."""

    name: str  # "max_length"
    value: int  # that is answered for
    largest: int | None  # that fits; None where memory stops following it
    multiple_of: int = 1  # the command trains at multiples of this alone


@dataclass(frozen=True)
class NextCommand:
    """What to type next."""

    line: str
    # "audit", "tune", "accumulate", "nearly-fastest", "largest", "best-of-table" or "solved"
    reason: str
    batch_size: int | None = None  # that the command then trains at, where it is known
    accumulation: int = 1  # batches that stand for one of the size that was asked
    sets_accumulation: bool = False  # `line` sets it; else the script is to be changed


@dataclass(frozen=True)
class Written:
    """A file that a prediction left for another tool."""

    path: str
    what: str  # "one predicted step at batch size 64, 316 ms long, as a Chrome trace"
    how: str  # to open it


@dataclass(frozen=True)
class Prediction:
    verdict: Verdict
    batch_size: int | None
    peak: PeakEstimate | None  # at that batch size
    phases: dict[str, PeakEstimate]
    not_seen: tuple[str, ...]  # phases that the trial never reached
    largest_batch_size: int | None
    limited_by: str | None
    gpu: Gpu
    budget: Budget
    method: str  # "trace" (run as asked), "extrapolated" or "peaks"
    exact: bool
    seconds: float
    approximations: dict[str, int]
    worst_batch: WorstBatch | None
    warnings: tuple[Diagnostic, ...] = ()
    # where batches are uneven: the peak if each were of the largest samples; `peak` is an epoch's
    largest_batches_peak: PeakEstimate | None = None
    # where there are several cards or ranks: all of them; `peak` is the worst one's
    cards: tuple[CardPeak, ...] = ()
    alone_of: int | None = None  # one rank of so many was started, without the others
    not_run: tuple[NotRun, ...] = ()  # branches of the script that no step of the trials took
    # None: the card's rates are not known, or no step was traced whole
    speed: PredictedSpeed | None = None
    breakdown: Breakdown | None = None  # of the device peak; None where no trace could be read
    phase_breakdowns: dict[str, Breakdown] = field(default_factory=dict)  # of each phase's own peak
    what_if: WhatIf | None = None  # None: it was not asked, and the batch size fits
    # not even the smallest batch size; False without a largest one: it was not searched for
    nothing_fits: bool = False
    # the batch that the script trains on, where it is not the size in question
    in_force: int | None = None
    ignores_batch_size: bool = False  # it is that whatever size is asked
    # no trial reached an evaluation, and the script has a DataLoader that gave no batch
    evaluates_later: bool = False
    next_command: NextCommand | None = None  # None: nothing fits
    loading: Loading | None = None  # None: the script's loader could not be timed here
    # the largest batch size that fits and at which an epoch has the batches of a step
    largest_with_a_step: int | None = None
    # None: nobody knows how many samples it has, or how long a step takes
    epoch: Epoch | None = None
    # What holds at other points, of which this is the answer to one: what `rows_of` says varies.
    rows: tuple[Answer, ...] = ()
    rows_of: str = ""  # "cards", the first one first; "settings", all combinations; "sizes"
    smallest: bool = False  # of these the one with the least memory comes first
    solved: Solved | None = None  # where another setting than the batch size was asked for
    # how often the allocator gives its cached memory back to go on; None: no trace
    retries_per_step: float | None = None
    # the time of a step that this takes, beside that of `speed`
    giving_back_s: Estimate | None = None
    written: tuple[Written, ...] = ()
    # as of a plan
    places: dict[str, Place] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def which(self) -> tuple[Answer, ...]:
        """The cards that were asked about."""
        return self.rows if self.rows_of == "cards" else ()

    @property
    def grid(self) -> tuple[Answer, ...]:
        """The combinations of settings that were asked about."""
        return self.rows if self.rows_of == "settings" else ()

    @property
    def sizes(self) -> tuple[Answer, ...]:
        """What each batch size means, ascending."""
        return self.rows if self.rows_of == "sizes" else ()

    def row_at(self, batch_size: int | None) -> Answer | None:
        """What the table of batch sizes has of one."""
        return next((row for row in self.sizes if row.batch_size == batch_size), None)


@dataclass(frozen=True)
class QueueRequest:
    """What a training asks a queue for. All numbers but `machines` are those of one machine."""

    gpu: Gpu  # the smallest that fits
    cards: int
    machines: int
    ranks: int
    # processes that the queue is to start: the ranks, or 1 where the command starts them itself
    tasks: int
    cores: Estimate
    host_bytes: Estimate | None  # None: no trial showed it
    shm_bytes: int  # of it, what loader workers hand over through /dev/shm
    peak_bytes: Estimate  # of the fullest card
    batch_size: int | None  # of the command, where it is known


@dataclass(frozen=True)
class Opened:
    """The first entry of a record."""

    schema: int
    record_id: str
    verb: str
    brimful_argv: tuple[str, ...]  # as the user typed it
    command: Command | None
    device: Device | None
    machine: Machine | None
    started_unix_s: float
    budget: Budget | None = None
    objective: Objective | None = None
    working_folder: str | None = None  # where the command was started


@dataclass(frozen=True)
class Closed:
    """The last entry of a record; a record without one was cut off."""

    exit_code: int
    finished_unix_s: float
    message: str | None = None


@dataclass(frozen=True)
class Record:
    """A record as it can be read back. `folder` holds record.jsonl and one folder a trial."""

    folder: str
    opened: Opened
    trials: tuple[TrialResult, ...] = ()
    prediction: Prediction | None = None
    audit: Audit | None = None
    memory: MemoryEstimate | None = None
    speed: SpeedEstimate | None = None
    plan: Plan | None = None
    run: Run | None = None
    comparison: Comparison | None = None
    check: Check | None = None
    notes: tuple[Diagnostic, ...] = ()
    closed: Closed | None = None
    torn: bool = False  # the last line was cut off and left out

    def _repr_html_(self) -> str:
        """What a notebook shows. Views stand above values, and are loaded when they are asked."""
        return import_module("brimful.show.html").render_frame(self)
