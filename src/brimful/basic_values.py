"""Values that all others share, and those of starting the command. (Import them from
`brimful.values`.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from brimful_inside.wire import Failure, PhasePeak, Place, Report

Setting = int | float | str | bool


class Source(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    DATASHEET = "datasheet"
    ASSUMED = "assumed"
    ESTIMATE = "estimate"  # arithmetic on predicted numbers; nothing like it was run


@dataclass(frozen=True)
class Estimate:
    """A number with its source and, where it is not exact, an interval (95 %)."""

    value: float
    source: Source
    low: float | None = None
    high: float | None = None
    note: str | None = None  # what it rests on: a bench's file, a datasheet's address, "4 repeats"

    def with_all(self, change: Callable[[float], float]) -> Estimate:
        """The value and both ends of the interval, each changed alike."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return replace(self, value=change(self.value), low=low, high=high)


@dataclass(frozen=True)
class Diagnostic:
    """A finding of audit, or a warning: what was seen, what it means, what to do."""

    code: str
    problem: str
    explanation: str
    suggestion: str


@dataclass(frozen=True)
class PlannedSetting:
    """One setting of a plan. `requested` and `effective` stand side by side, with the reason."""

    name: str
    requested: Setting | None  # in the user's command; None if it does not set it
    effective: Setting | None
    why: str
    source: Source


@dataclass(frozen=True)
class Command:
    """The user's argv, with ``{name}`` where a setting goes."""

    argv: tuple[str, ...]
    found_flags: dict[str, str] = field(
        default_factory=dict
    )  # setting -> the flag it was found behind
    given: dict[str, Setting] = field(
        default_factory=dict
    )  # placeholder -> what stood there in the user's own command
    environment: dict[str, str] = field(default_factory=dict)  # added to the child's environment
    places: dict[str, Place] = field(
        default_factory=dict
    )  # setting -> where the script has its number, where no flag takes it


@dataclass(frozen=True)
class Gpu:
    """A card of the catalogue. Each number has its source; see docs/quantities.md for what the
    bytes are.
    """

    key: str  # "a100-40gb"
    name: str  # as torch.cuda.get_device_name() shows it
    total_bytes: Estimate  # usable, as torch.cuda.mem_get_info()[1] shows it
    context_bytes: Estimate
    capability: tuple[int, int]
    multiprocessors: int
    bandwidth_bytes_per_s: Estimate
    fp32_flops: Estimate
    tf32_flops: Estimate | None
    fp16_flops: Estimate | None  # dense, tensor cores where there are some
    bf16_flops: Estimate | None
    sustained_clock: Estimate | None = (
        None  # share of the clock of these peaks that its power limit lets it hold; None: all
    )
    cudnn_bytes: Estimate | None = None  # what cuDNN adds to the context once a convolution has run
    peer_bytes_per_s: Estimate | None = (
        None  # its link to others of a machine, each way; the note says which; None: not known
    )
    calibration: str | None = (
        # "context measured on 2026-11-20 on this machine (...)"; None: as the catalogue has it
        None
    )
    reached: dict[str, float] = field(
        default_factory=dict
    )  # rates measured with it, by the names of Calibration.rates


@dataclass(frozen=True)
class PeakEstimate:
    """A peak of device memory in its three names (docs/quantities.md)."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    device_interval_bytes: tuple[int, int]  # 95 %
    source: Source
    interval_basis: str  # the bench result it rests on, or why it is assumed


@dataclass(frozen=True)
class CardAnswer:
    """One card of several that were asked about, or so many of it in a machine."""

    gpu: Gpu
    cards: int
    verdict: str | None  # as of a prediction; None: the command fails there
    batch_size: int | None  # that was asked, else the largest that fits
    peak: PeakEstimate | None = None  # at that batch size
    largest_batch_size: int | None = None
    solved: int | None = None  # the largest value of another setting, where that was asked
    # a trace at the answer confirmed it; else its sizes are extrapolated from smaller traces alone
    traced: bool = False
    samples_per_s: Estimate | None = None  # over all its cards
    epoch_s: Estimate | None = None  # of its training, by the card alone
    slow_loading: bool = False  # this machine loads more slowly than that
    price_per_h: Estimate | None = None  # US dollars, of all its cards
    epoch_price: Estimate | None = None  # US dollars
    problem: str = ""  # why the command fails there
    unused: int = 0  # of its cards, those that the command does not use


@dataclass(frozen=True)
class Solved:
    """The largest value of a setting that fits."""

    name: str  # "max_length"
    value: int  # that is answered for
    largest: int | None  # that fits; None where memory stops following it
    multiple_of: int = 1  # the command trains at multiples of this alone


@dataclass(frozen=True)
class GridCell:
    """One combination of settings in a table of them."""

    settings: dict[str, Setting]
    verdict: str | None  # as of a prediction; None: the command fails there
    peak: PeakEstimate | None
    # at these very settings; else each allocation's size is extrapolated, and a further trace
    # confirmed them
    traced: bool
    samples_per_s: Estimate | None = None
    tokens_per_s: Estimate | None = None  # where one of the settings is the length of the samples
    best: bool = False  # the fastest that fits; where none does, the one that takes least
    problem: str = ""  # why the command fails there


@dataclass(frozen=True)
class Calibration:
    """What was measured of a real card on its machine (`doctor --calibrate`)."""

    name: str  # as torch.cuda.get_device_name() shows it
    capability: tuple[int, ...]
    multiprocessors: int
    total_bytes: int  # usable, as torch.cuda.mem_get_info()[1] shows it
    # on the card beside PyTorch's segments, after some training steps without a convolution
    context_bytes: int
    cudnn_bytes: int  # what convolutions added to that
    stages_bytes: dict[
        str, int
    ]  # the same after each stage: "bare", "tensor", "cublas", "training", "cudnn"
    others_bytes: int | None  # held by other processes before, and taken off; None: not known
    rates: dict[
        str, float
    ]  # reached: *_bytes_per_s, *_flops (operations per second), kernel_s and dispatch_s (seconds)
    versions: dict[str, str | int | None]  # torch, cuda, cudnn, driver
    hostname: str
    date: str  # ISO


@dataclass(frozen=True)
class Device:
    """What a trial runs on."""

    kind: str  # "cpu", "accelerator" or "imaginary"
    label: str  # "cpu", "cuda:0", "a100-40gb (imaginary)"
    gpu: Gpu | None = None  # imaginary only
    cards: int = 1  # imaginary: so many of them in the machine
    ranks: int | None = (
        # imaginary: one rank of so many is started alone; None: the command starts its ranks itself
        None
    )
    as_rank: int | None = None  # which one


@dataclass(frozen=True)
class Budget:
    """How much memory the user allows, and of which kind."""

    bytes: int
    total_bytes: int  # what the machine or card has
    free_bytes: int  # what is free before the trial
    memory: str  # "device" or "host"
    why: str  # "90 % of 38.3 GiB free"


@dataclass(frozen=True)
class Limits:
    """What a batch size must obey besides the budget."""

    dataset_length: int | None = None
    max_batch_size: int | None = None
    loader_cap: int | None = (
        None  # the largest batch that the script's loader makes, where trials showed one
    )


@dataclass(frozen=True)
class Machine:
    """What this machine is, from outside. For records and `doctor`."""

    hostname: str
    system: str
    cpu_name: str
    cores: int  # by affinity and cgroup quota
    host_total_bytes: int
    host_free_bytes: int
    cgroup_limit_bytes: int | None
    shm_bytes: int | None
    python_version: str
    brimful_version: str
    accelerators: tuple[str, ...] = ()  # names, by NVML or torch


class Outcome(StrEnum):
    """How a trial or an attempt of a run ended. What follows from each stands in
    `brimful.outcomes`.
    """

    COMPLETED = "completed"
    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"
    OUT_OF_HOST_MEMORY = "out_of_host_memory"
    TIMED_OUT = "timed_out"
    KILLED = "killed"  # by a signal that nobody can explain; 9 is "probably for memory"
    CRASHED = "crashed"  # the script raised an error, or left with an exit code of its own
    UNSUPPORTED = "unsupported"  # the imaginary GPU met a call it does not have
    PROBE_NOT_LOADED = "probe_not_loaded"  # no training process reported in
    NO_STEP = "no_step"  # it ended well and no optimizer stepped
    INTERRUPTED = "interrupted"  # Ctrl-C
    TERMINATED = "terminated"  # SIGTERM, as a cluster sends it


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What the processes of one start of the command did, all ranks gathered: worst memory, summed
    samples per second.
    """

    outcome: Outcome
    reports: tuple[Report, ...] = ()  # one a rank, by rank: the last of each
    phases: dict[str, PhasePeak] = field(default_factory=dict)  # the worst rank's, by phase
    peak: PhasePeak | None = None  # over whole processes, worst rank
    samples_per_s: float | None = (
        None  # of a trial: over its measured steps; of a run: while training
    )
    loading_share: float | None = None  # of that time, waited for data
    duration_s: float  # from the start of the command to the end of its processes
    folder: str  # relative to the record
    failure: Failure | None = None
    failed_rank: int | None = None  # the rank that failed first, where there are several
    exit_code: int | None = None  # of the command; negative is a signal; None if brimful ended it
    process_tree_host_bytes: int | None = (
        None  # peak resident memory of all its processes together, sampled from outside
    )
    notes: tuple[str, ...] = ()

    @property
    def host_bytes(self) -> int | None:
        """Peak resident memory of all its processes together: sampling can miss what the worst rank
        says of itself.
        """
        own = self.peak.host_bytes if self.peak else None
        return max(
            (known for known in (own, self.process_tree_host_bytes) if known is not None),
            default=None,
        )


class TrialKind(StrEnum):
    """What a trial is for. Memory and time are measured apart where measuring one disturbs the
    other (on a CPU).
    """

    TRACE = "trace"  # imaginary card
    MEMORY = "memory"
    SPEED = "speed"
    AUDIT = "audit"


@dataclass(frozen=True)
class Trial:
    """One run of the command for a few steps, with settings and a device."""

    command: Command
    settings: dict[str, Setting]
    device: Device
    kind: TrialKind
    environment: dict[str, str] = field(
        default_factory=dict
    )  # a setting that lives in the environment (malloc)
    steps: int = 3
    warmup_steps: int = 1
    see_eval: bool = True
    time_limit_s: float = 600.0
    capacity_bytes: int | None = None  # imaginary: the card is full here
    what_ifs: tuple[str, ...] = ()  # imaginary: what is done otherwise: "autocast", "checkpointing"
    time_loader: int | None = (
        None  # imaginary: time the training loader, in batches of up to so many samples
    )
    find_places: str | None = (
        None  # find where the numbers of loaders come from: "script" or "loader"
    )
    host_limit_bytes: int | None = (
        None  # the trial is ended as out of host memory when its processes are seen to hold more
    )
    others: tuple[
        tuple[int, int], ...
    ] = ()  # imaginary: capabilities of other cards that it may speak for as well


@dataclass(frozen=True, kw_only=True)
class TrialResult(Execution):
    """What one trial showed."""

    trial: Trial
    samples_per_step: int | None = None  # effective batch: over all ranks
    step_s: tuple[float, ...] = ()  # measured steps, slowest rank; () on an imaginary card
    samples_per_cpu_s: float | None = (
        None  # on a CPU: for each second of the ranks' processor time in the measured steps
    )
    others_share: float | None = (
        None  # of the cores' time while it ran, taken by other processes; None: not known
    )


@dataclass(frozen=True)
class RunStarted:
    """What a run was asked to do, before its first attempt."""

    source: (
        str  # of its settings: "plan", "settings" (given with --set) or "command" (as it stands)
    )
    why: str  # in a sentence: which plan, or why none
    max_restarts: int
    resume_words: tuple[
        str, ...
    ]  # what stands for {resume} from the second attempt on; () where the command has none
    host_limit_bytes: int | None = (
        None  # an attempt is ended as out of host memory when its processes are seen to hold more
    )


@dataclass(frozen=True, kw_only=True)
class Attempt(Execution):
    """One start of the command in a run, to its end."""

    number: int  # from 1
    settings: tuple[PlannedSetting, ...]
    argv: tuple[str, ...]
    environment: dict[str, str]  # added to the user's own
    resumed: (
        bool | None
    )  # whether it got the words that resume from a checkpoint; None: a first attempt
    steps: int  # of the rank that came furthest
    samples: int | None = None  # trained on, over all ranks; None where not known
    started_unix_s: float
    output_cut: str | None = None  # why a part of its output is not in the record


@dataclass(frozen=True)
class RunEnded:
    """How a run ended: by the outcome of its last attempt."""

    outcome: Outcome
    exit_code: int  # of brimful (`brimful.errors` has them)
    message: str  # in a sentence


@dataclass(frozen=True)
class Run:
    """A run as the record has it; put together from its entries."""

    started: RunStarted
    attempts: tuple[Attempt, ...] = ()
    ended: RunEnded | None = None  # None: cut off, or still going on


@dataclass(frozen=True)
class Heartbeat:
    """What is seen of an attempt while it goes on, about once a second. Absent is None."""

    phase: str | None  # None: no rank has reported yet
    steps: int
    seconds: float  # since the attempt began
    ranks: int = 0
    samples_per_s: float | None = None  # of all ranks, lately
    loading_share: float | None = None  # of the slowest rank, lately
    loss: float | None = (
        # as the engine reports it, else what went backward; None where reading waits for a device
        None
    )
    loss_rank: int | None = None  # whose loss it is; None: the mean of all ranks
    allocated_bytes: int | None = None  # now, of the fullest rank
    reserved_bytes: int | None = None
    process_tree_host_bytes: int | None = None  # of all processes together
    host_used_share: float | None = None  # of the machine's memory or the cgroup's, whoever uses it
    alloc_retries: int | None = None  # since the attempt began, worst rank
    retry_streak: int = (
        0  # polls in a row in which the allocator had to try again, the longest of any rank
    )
