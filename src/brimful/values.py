"""The words brimful speaks, as frozen dataclasses without logic. Units are in the names; absent is ``None``.

GiB is 1024**3. A number that reaches a person says where it comes from (`Source`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from brimful.basic_values import (
    Budget,
    Calibration,
    Command,
    Device,
    Diagnostic,
    Estimate,
    Gpu,
    Limits,
    Machine,
    PlannedSetting,
    Setting,
    Source,
)  # fmt: skip
from brimful.execution_values import (
    Attempt,
    Execution,
    Heartbeat,
    Outcome,
    Run,
    RunEnded,
    RunStarted,
    Trial,
    TrialKind,
    TrialResult,
)  # fmt: skip
from brimful.memory_values import Alike, Breakdown, CardPeak, ModuleShare, Moment, NoSaving, PeakEstimate, Saving, WhatIf
from brimful_inside.wire import Card, Failure, PhasePeak, Report, RunCounters, WorstBatch

__all__ = [
    "Alike",
    "Attempt",
    "Audit",
    "Breakdown",
    "Budget",
    "Calibration",
    "Card",
    "CardPeak",
    "Closed",
    "Command",
    "Device",
    "Diagnostic",
    "Effective",
    "Estimate",
    "Execution",
    "Failure",
    "Gpu",
    "Heartbeat",
    "KernelShare",
    "Limits",
    "Machine",
    "MemoryEstimate",
    "ModuleShare",
    "Moment",
    "NoSaving",
    "Objective",
    "Opened",
    "Outcome",
    "PeakEstimate",
    "PhasePeak",
    "Plan",
    "PlannedSetting",
    "Point",
    "PredictedSpeed",
    "Prediction",
    "Record",
    "Report",
    "Run",
    "RunCounters",
    "RunEnded",
    "RunStarted",
    "Saving",
    "Setting",
    "Source",
    "SpeedEstimate",
    "Trial",
    "TrialKind",
    "TrialResult",
    "WhatIf",
    "WorstBatch",
]  # fmt: skip


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
    method: str  # "extrapolated" (each allocation's size, from traces) or "peaks" (fixed + linear + quadratic)
    exact: bool  # extrapolated: a trace not used for fitting was reproduced to the byte, as far as the answer needs it
    fixed_bytes: float | None  # peaks only
    linear_bytes: float | None
    quadratic_bytes: float | None
    curve: tuple[Point, ...]  # predicted, for the page
    probes: tuple[Point, ...]  # what trials showed
    largest_batch_size: int | None  # under budget and limits, by the rule of fitting; None: see `nothing_fits`
    limited_by: str | None  # "budget", "dataset", "max_batch_size"
    ignores_batch_size: bool = False
    nothing_fits: bool = False  # not even the smallest batch size; False without a largest one: it was not searched for


@dataclass(frozen=True)
class SpeedEstimate:
    """What is concluded about speed."""

    points: tuple[Point, ...]  # samples per second, measured, with interval
    best_batch_size: int | None
    knee_batch_size: int | None  # the smallest within the tolerance of the best
    noise: float | None  # relative spread of repeats
    tolerance: float  # 0.03 or the noise, whichever is larger


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
    baseline_samples_per_s: Estimate | None = None  # the user's own settings, measured in the same session
    warnings: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class KernelShare:
    """An operation's part of a step's time."""

    op: str  # "convolution_backward"
    share: float  # of the step; all calls together
    bound_by: str  # what most of its time is spent on: "compute", "bandwidth", "launches" or "transfer"


@dataclass(frozen=True)
class PredictedSpeed:
    """The time of a step on a card where nothing was run, from each kernel's arithmetic and bytes. All of it is predicted.

    Loading is not in it: how fast the host loads there cannot be known from here.
    """

    batch_size: int | None  # None: of the command as it stands
    step_s: Estimate
    samples_per_s: Estimate | None  # None where nobody knows how many samples are in a step
    share_of_best: float | None  # of the fastest size that fits; None without a curve
    curve: tuple[Point, ...]  # samples per second, up to the largest batch size that fits
    best_batch_size: int | None
    knee_batch_size: int | None  # the smallest within the tolerance of the best
    knee_interval: tuple[int, int] | None  # where it lies with a host twice as fast, and half as fast
    tolerance: float
    bound_by: dict[str, float]  # shares of the step: "compute", "bandwidth", "launches" (the host is awaited), "transfer"
    kernels: tuple[KernelShare, ...]  # the operations that take longest
    exact: bool  # the same kernels ran in all traces
    notes: tuple[str, ...] = ()  # what is not in it: "talk between 4 ranks is not counted"
    ranks: int = 1  # whose talk to each other is not in it


@dataclass(frozen=True)
class Prediction:
    """The answer of `predict`."""

    verdict: str  # "fits" or "out_of_memory"
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
    cards: tuple[CardPeak, ...] = ()  # where there are several cards or ranks: all of them; `peak` is the worst one's
    alone_of: int | None = None  # one rank of so many was started, without the others
    speed: PredictedSpeed | None = None  # None: the card's rates are not known, or no step was traced whole
    breakdown: Breakdown | None = None  # of the device peak; None where no trace could be read
    phase_breakdowns: dict[str, Breakdown] = field(default_factory=dict)  # of each phase's own peak
    what_if: WhatIf | None = None  # None: it was not asked, and the batch size fits
    nothing_fits: bool = False  # not even the smallest batch size; False without a largest one: it was not searched for


@dataclass(frozen=True)
class Effective:
    """What the script really did."""

    loader_batch_size: int | None
    batches_per_step: float | None
    ranks: int
    samples_per_step: float | None
    samples_source: Source = Source.MEASURED  # assumed: without a DataLoader they are counted by the model's input


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
    notes: tuple[str, ...] = ()  # what the trial said besides: "the script used no accelerator"
    cards: dict[str, PhasePeak] = field(default_factory=dict)  # where there are several imaginary ones: "rank 0, cuda:0"


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
