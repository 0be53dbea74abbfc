"""A trial, and how it and every other start of the command ended."""

from dataclasses import dataclass, field
from enum import StrEnum

from brimful.values.command import Command, Setting
from brimful.values.machine import Device
from brimful_inside.wire import Failure, PhasePeak, Report


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
    # of a trial: over its measured steps; of a run: while training
    samples_per_s: float | None = None
    loading_share: float | None = None  # of that time, waited for data
    duration_s: float  # from the start of the command to the end of its processes
    folder: str  # relative to the record
    failure: Failure | None = None
    failed_rank: int | None = None  # the rank that failed first, where there are several
    exit_code: int | None = None  # of the command; negative is a signal; None if brimful ended it
    # peak resident memory of all its processes together, sampled from outside
    process_tree_host_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def host_bytes(self) -> int | None:
        """Peak resident memory of all its processes together: sampling can miss what the worst rank
        says of itself.
        """
        worst_rank = self.peak.host_bytes if self.peak else None
        return max(
            (known for known in (worst_rank, self.process_tree_host_bytes) if known is not None),
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
    # a setting that lives in the environment (malloc)
    environment: dict[str, str] = field(default_factory=dict)
    steps: int = 3
    warmup_steps: int = 1
    see_eval: bool = True
    time_limit_s: float = 600.0
    capacity_bytes: int | None = None  # imaginary: the card is full here
    what_ifs: tuple[str, ...] = ()  # imaginary: what is done otherwise: "autocast", "checkpointing"
    # imaginary: time the training loader, in batches of up to so many samples
    time_loader: int | None = None
    # find where the numbers of loaders come from: "script" or "loader"
    find_places: str | None = None
    # the trial is ended as out of host memory when its processes are seen to hold more
    host_limit_bytes: int | None = None
    # imaginary: capabilities of other cards that it may speak for as well
    others: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrialResult(Execution):
    """What one trial showed."""

    trial: Trial
    samples_per_step: int | None = None  # effective batch: over all ranks
    step_s: tuple[float, ...] = ()  # measured steps, slowest rank; () on an imaginary card
    # on a CPU: for each second of the ranks' processor time in the measured steps
    samples_per_cpu_s: float | None = None
    # of the cores' time while it ran, taken by other processes; None: not known
    others_share: float | None = None
