"""A trial, a training under a plan, and how these and every other start of the command ended."""

from dataclasses import dataclass, field
from enum import StrEnum

from brimful.values.given import Command, Device, EffectiveSetting, Setting
from brimful_inside.wire import Ends, Failure, PhasePeak, Place, Report


class Outcome(StrEnum):
    """How a trial or an attempt of a run ended. What follows from each stands in
    `brimful.outcomes`.
    """

    COMPLETED = "completed"
    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"
    OUT_OF_HOST_MEMORY = "out_of_host_memory"
    # /dev/shm, through which loader workers hand over their batches
    FULL_SHARED_MEMORY = "full_shared_memory"
    FULL_DISK = "full_disk"  # or a quota that is used up
    NO_FILE_DESCRIPTORS = "no_file_descriptors"
    NO_PROCESSES = "no_processes"  # and no threads: the kernel counts them together
    FULL_ADDRESS_SPACE = "full_address_space"  # `ulimit -v`, whatever memory is free
    TIMED_OUT = "timed_out"
    KILLED = "killed"  # by a signal; by whom, the kernel's counters do not say
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
    def resumes_itself(self) -> bool:
        """Whether the script goes on from its own newest checkpoint wherever it is started."""
        return any(report.resumes_itself for report in self.reports)

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
    ends: Ends = field(default_factory=Ends)
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
    # imaginary: batches as the script draws them, in place of ones made of the largest samples
    as_drawn: bool = False
    # then: which batch, and the next, is the largest of many drawn at random
    largest_at: int | None = None
    watches_branches: bool = False  # report the branches of the script that no step took
    reach: tuple[str, ...] = ()  # "train.py:88": lines that it is to come to


@dataclass(frozen=True, kw_only=True)
class TrialResult(Execution):
    trial: Trial
    samples_per_step: int | None = None  # effective batch: over all ranks
    step_s: tuple[float, ...] = ()  # measured steps, slowest rank; () on an imaginary card
    # on a CPU: for each second of the ranks' processor time in the measured steps
    samples_per_cpu_s: float | None = None
    # of the cores' time while it ran, taken by other processes; None: not known
    others_share: float | None = None


@dataclass(frozen=True)
class RunStarted:
    """What a run was asked to do, before its first attempt."""

    # of its settings: "plan", "settings" (given with --set) or "command" (as it stands)
    source: str
    why: str  # in a sentence: which plan, or why none
    max_restarts: int
    # what stands for {resume} from the second attempt on; () where the command has none
    resume_words: tuple[str, ...]
    # an attempt is ended as out of host memory when its processes are seen to hold more
    host_limit_bytes: int | None = None
    # the run of the same command that was cut off, and that this one continues
    goes_on: str | None = None
    # setting -> where brimful sets it in a script without a flag; digests of the files that it was
    # found in, by path
    places: dict[str, Place] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What is known of an attempt from its start on."""

    number: int  # from 1
    settings: tuple[EffectiveSetting, ...]
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)  # added to the user's own
    # whether it got the words that resume from a checkpoint; None: a first attempt
    resumed: bool | None
    started_unix_s: float


@dataclass(frozen=True, kw_only=True)
class AttemptStarted(_Start):
    """One start of the command in a run, before its end is known."""

    folder: str  # relative to the record
    pid: int  # of brimful


@dataclass(frozen=True)
class Heartbeat:
    """What is seen of an attempt while it goes on, about once a second. Absent is None."""

    phase: str | None  # None: no rank has reported yet
    steps: int
    seconds: float  # since the attempt began
    ranks: int = 0
    samples_per_s: float | None = None  # of all ranks, lately
    loading_share: float | None = None  # of the slowest rank, lately
    # as the engine reports it, else what went backward; None where reading waits for a device
    loss: float | None = None
    loss_rank: int | None = None  # whose loss it is; None: the mean of all ranks
    allocated_bytes: int | None = None  # now, of the fullest rank
    reserved_bytes: int | None = None
    process_tree_host_bytes: int | None = None  # of all processes together
    host_used_share: float | None = None  # of the machine's memory or the cgroup's, whoever uses it
    alloc_retries: int | None = None  # since the attempt began, worst rank
    # polls in a row in which the allocator had to try again, the longest of any rank
    retry_streak: int = 0
    # of training, in seconds: what the two rates of late are of
    rates_over_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt(_Start, Execution):
    """One start of the command in a run, to its end."""

    steps: int  # of the rank that came furthest
    samples: int | None = None  # trained on, over all ranks; None where not known
    output_cut: str | None = None  # why a part of its output is not in the record
    course: tuple[Heartbeat, ...] = ()  # evenly over its time, some hundred at most


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
    # the attempt whose end is not in the record, and how many steps its processes had reported;
    # None: not known, they may have trained
    going: AttemptStarted | None = None
    going_steps: int | None = None
    going_resumes_itself: bool = False  # its script finds its own newest checkpoint
