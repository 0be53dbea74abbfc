# ruff: noqa: F401 (this is where all others import the values from)
"""The words of brimful, as frozen dataclasses without logic. Units are in the names; absent is
``None``.

GiB is 1024**3. A number that reaches a person has a `Source`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from brimful.basic_values import (
    Attempt,
    Budget,
    Calibration,
    CardAnswer,
    Command,
    Device,
    Diagnostic,
    Estimate,
    Execution,
    Gpu,
    GridCell,
    Heartbeat,
    Limits,
    Machine,
    Outcome,
    PeakEstimate,
    PlannedSetting,
    Run,
    RunEnded,
    RunStarted,
    Setting,
    Solved,
    Source,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful_inside.wire import Card, Failure, PhasePeak, Place, Report, RunCounters, WorstBatch


@dataclass(frozen=True)
class Moment:
    """An allocation that set a peak."""

    phase: str
    op: str  # "aten.mm.default"; "" where a phase began at its peak
    module: str  # the module that it belongs to, in a backward pass too; "" outside of any
    where: str  # the user's line: "train.py:57 in main: loss.backward()"; "" where there is none
    # "forward", "backward", "recomputation" (of a checkpointed forward pass), "optimizer" or ""
    during: str


@dataclass(frozen=True)
class ModuleShare:
    """What one module holds without its children at a peak."""

    module: str  # its path as named_modules() of the outermost module calls it, or "Net (itself)"
    bytes: int
    categories: dict[str, int]  # of these, by category


@dataclass(frozen=True)
class Alike:
    """Modules whose paths differ in their numbers alone, taken together."""

    pattern: str  # "transformer.h.*.mlp"
    count: int
    bytes: int


@dataclass(frozen=True)
class Breakdown:
    """What the device peak is made of, at the moment when most was live. The parts add up to the
    device peak.
    """

    phase: str  # in which the peak lies
    parts: dict[
        str, int
    ]  # bytes by category (docs/quantities.md), in the order in which they are shown; those at 0 too
    modules: tuple[ModuleShare, ...]  # the ten that hold most
    alike: tuple[Alike, ...]  # the groups that hold most, of two modules or more
    moment: Moment
    grown: Moment | None = (
        None  # where the allocator took its last segment; None: at the same moment
    )


@dataclass(frozen=True)
class Remedy:
    """A change that lowers the peak, made after those before it, and what the card then shows."""

    # "expandable-segments", "mixed-precision", "gradient-checkpointing", "accumulation-2", ...
    code: str
    what: str  # "mixed precision"
    how: str  # what to write in the script, or to set
    source: Source  # predicted: a trial or its replay has it; estimate: arithmetic on what was seen
    device_bytes: int  # the peak
    verdict: str  # as a prediction's
    step_s: Estimate | None = (
        None  # of a step with the same effective batch; None where it is not predicted
    )
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


@dataclass(frozen=True)
class CardPeak:
    """The predicted peak of one card of several."""

    rank: int
    index: int  # as in cuda:1
    peak: PeakEstimate


class Objective(StrEnum):
    FASTEST = "fastest"
    LARGEST = "largest"
    FIT = "fit"


@dataclass(frozen=True)
class Point:
    """One batch size with its peak or its speed, for curves."""

    batch_size: int
    value: Estimate


@dataclass(frozen=True)
class MemoryEstimate:
    """What is concluded about memory: a peak for every batch size."""

    memory: str  # "device" or "host"
    # "extrapolated" (each allocation's size, from traces) or "peaks" (fixed + linear + quadratic)
    method: str
    # extrapolated: a trace not used for fitting was reproduced to the byte, as far as the answer
    # needs it
    exact: bool
    fixed_bytes: float | None  # peaks only
    linear_bytes: float | None
    quadratic_bytes: float | None
    curve: tuple[Point, ...]  # predicted, for the page
    probes: tuple[Point, ...]  # what trials showed
    largest_batch_size: (
        int | None
    )  # under budget and limits, by the rule of fitting; None: see `nothing_fits`
    limited_by: (
        str | None
    )  # "budget", "dataset", "max_batch_size", "loader", "not_followed" (larger sizes take no more)
    ignores_batch_size: bool = False
    # not even the smallest batch size; False without a largest one: it was not searched for
    nothing_fits: bool = False
    loader_cap: int | None = (
        None  # the largest batch that the script's loader makes, where trials showed one
    )
    unknown: str = "batch_size"  # the setting that all sizes here are of


@dataclass(frozen=True)
class SpeedEstimate:
    """What is concluded about speed."""

    points: tuple[Point, ...]  # samples per second, measured, with interval
    best_batch_size: int | None
    knee_batch_size: int | None  # the smallest within the tolerance of the best
    noise: float | None  # relative spread of repeats
    tolerance: float  # 0.03 or the noise, whichever is larger


@dataclass(frozen=True)
class TriedSize:
    """A batch size as a row of the table of `tune`. Each number says whether it was measured at
    this size, or predicted.
    """

    batch_size: int
    fits: bool | None  # within the budget; None: not known
    peak_bytes: Estimate | None  # of the memory that the budget is of; None where a trial ran out
    effective_batch: Estimate | None  # samples in an update, over all ranks
    updates_per_epoch: Estimate | None
    epoch_s: Estimate | None


@dataclass(frozen=True)
class Plan:
    """The chosen settings, and the command to paste."""

    objective: Objective
    settings: tuple[PlannedSetting, ...]
    environment: dict[str, str]
    command_line: str  # to paste, environment included
    verified: bool  # these settings were run in a trial that fitted
    trials: int
    out_of_memory_trials: int
    peak_bytes: Estimate | None = None
    samples_per_s: Estimate | None = None
    baseline_samples_per_s: Estimate | None = (
        None  # the user's own settings, measured in the same session
    )
    gain: Estimate | None = (
        # how many times as fast as these, both run by turns; None where it is these, or not known
        None
    )
    partial: str | None = None  # what ended the search before its time; None: it came to its end
    warnings: tuple[Diagnostic, ...] = ()
    sizes: tuple[TriedSize, ...] = ()  # ascending
    places: dict[str, Place] = field(
        default_factory=dict
    )  # setting -> where brimful sets it in a script without a flag
    sources: dict[str, str] = field(
        default_factory=dict
    )  # digests of the files that the command loaded or names, by path


@dataclass(frozen=True)
class KernelShare:
    """An operation's part of a step's time."""

    op: str  # "convolution_backward"
    share: float  # of the step; all calls together
    bound_by: (
        str  # what most of its time is spent on: "compute", "bandwidth", "launches" or "transfer"
    )


@dataclass(frozen=True)
class PredictedSpeed:
    """The time of a step on a card where nothing was run, from each kernel's arithmetic and bytes.
    All of it is predicted.

    Loading is not in it: how fast the host loads there cannot be known from here.
    """

    batch_size: int | None  # None: of the command as it stands
    step_s: Estimate
    samples_per_s: Estimate | None  # None where nobody knows how many samples are in a step
    curve: tuple[Point, ...]  # samples per second, up to the largest batch size that fits
    best_batch_size: int | None
    knee_batch_size: int | None  # the smallest within the tolerance of the best
    knee_interval: (
        tuple[int, int] | None
    )  # where it lies with a host twice as fast, and half as fast
    tolerance: float
    bound_by: dict[
        str, float
    ]  # shares of the step: "compute", "bandwidth", "launches" (the host is awaited), "transfer"
    kernels: tuple[KernelShare, ...]  # the operations that take longest
    exact: bool  # the same kernels ran in all traces
    notes: tuple[str, ...] = ()  # what is not in it: "communication between 4 ranks is not counted"
    ranks: int = 1
    exchange: Estimate | None = (
        # seconds of it between cards, hidden ones too; the note names the link. None: none seen
        None
    )


@dataclass(frozen=True)
class Loading:
    """How fast this machine makes one rank's batches, beside what its card takes. Samples per
    second.
    """

    workers: int  # that the loader asks for
    one_worker: Estimate
    all_workers: Estimate  # of all these; of one where there are none
    card: Estimate | None  # one rank's share of the predicted speed; None where that is not known
    needed: int | None  # workers that keep up with it; None likewise
    binds: bool  # the card waits for what is loaded here


@dataclass(frozen=True)
class Epoch:
    """An epoch of the training at the predicted speed, over all ranks."""

    steps: int
    samples_per_step: int
    samples: int
    samples_given: bool  # by the user, not by the data that is here
    distinct: int | None  # of these; None where nobody knows
    train_s: Estimate
    waits_for_data: bool  # both times are those of loading as it is here, where that is longer
    evaluated: int | None  # samples of an evaluation; None where none was seen
    evaluation_s: Estimate | None
    between_s: Estimate | None = (
        None  # of what runs on the card from one pass over the data to the next, evaluations aside
    )


@dataclass(frozen=True)
class NextCommand:
    """What to type next."""

    line: str
    why: str


@dataclass(frozen=True)
class Prediction:
    """The answer of `predict`."""

    verdict: str  # "fits"; "tight": only if what is uncertain turns out small; "does_not_fit"
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
    cards: tuple[
        CardPeak, ...
    ] = ()  # where there are several cards or ranks: all of them; `peak` is the worst one's
    alone_of: int | None = None  # one rank of so many was started, without the others
    speed: PredictedSpeed | None = (
        None  # None: the card's rates are not known, or no step was traced whole
    )
    breakdown: Breakdown | None = None  # of the device peak; None where no trace could be read
    phase_breakdowns: dict[str, Breakdown] = field(default_factory=dict)  # of each phase's own peak
    what_if: WhatIf | None = None  # None: it was not asked, and the batch size fits
    # not even the smallest batch size; False without a largest one: it was not searched for
    nothing_fits: bool = False
    in_force: int | None = (
        None  # the batch that the script trains on, where it is not the size in question
    )
    ignores_batch_size: bool = False  # it is that whatever size is asked
    next_command: NextCommand | None = None  # None: nothing fits
    loading: Loading | None = None  # None: the script's loader could not be timed here
    epoch: Epoch | None = (
        None  # None: nobody knows how many samples it has, or how long a step takes
    )
    which: tuple[
        CardAnswer, ...
    ] = ()  # where several cards were asked about: all of them, the cheapest epoch first
    solved: Solved | None = None  # where another setting than the batch size was asked for
    grid: tuple[
        GridCell, ...
    ] = ()  # of a table: every combination; the rest is the answer for the `best` of them
    retries_per_step: float | None = (
        None  # how often the allocator gives its cached memory back to go on; None: no trace
    )
    giving_back_s: Estimate | None = (
        None  # the time of a step that this takes, beside that of `speed`
    )


@dataclass(frozen=True)
class Effective:
    """What the script really did."""

    loader_batch_size: int | None
    batches_per_step: float | None
    ranks: int
    samples_per_step: float | None
    samples_source: Source = (
        Source.MEASURED
    )  # assumed: without a DataLoader they are counted by the model's input


@dataclass(frozen=True)
class Audit:
    """The answer of `audit`."""

    requested: dict[str, Setting]
    effective: Effective
    findings: tuple[Diagnostic, ...]
    loading_share: float | None
    step_s: float | None  # median of the measured steps
    peak: PhasePeak | None
    phases: dict[str, PhasePeak]
    not_seen: tuple[str, ...]
    peak_source: Source = Source.MEASURED  # of all peaks; predicted on an imaginary card
    notes: tuple[str, ...] = ()  # what the trial showed besides: "the script used no accelerator"
    cards: dict[str, PhasePeak] = field(
        default_factory=dict
    )  # where there are several imaginary ones: "rank 0, cuda:0"


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
    notes: tuple[Diagnostic, ...] = ()
    closed: Closed | None = None
    torn: bool = False  # the last line was cut off and left out
