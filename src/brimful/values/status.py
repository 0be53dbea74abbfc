"""What is seen of a run at hand, and of the machine that it runs on, at one moment. Absent is
None."""

from dataclasses import dataclass, field
from enum import StrEnum

from brimful.values.executions import Heartbeat
from brimful.values.given import Budget, Device, Diagnostic, Estimate, Setting
from brimful_inside.wire import PhasePeak


class State(StrEnum):
    """Whether what is watched still goes on."""

    GOING = "going"
    ENDED = "ended"  # by itself; its record says how
    CUT_OFF = "cut_off"  # brimful was killed, and the record has no end
    UNKNOWN = "unknown"  # a training without brimful, whose process nobody named


@dataclass(frozen=True)
class CardProcess:
    """A process that holds memory of a card."""

    pid: int
    name: str
    bytes: int
    watched: bool  # it is one of those that are watched


@dataclass(frozen=True)
class CardStatus:
    """One card as NVML reports it, numbered as nvidia-smi does; None where it does not say."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int  # by all processes
    # those that hold memory; () where the driver does not say, as in many containers
    processes: tuple[CardProcess, ...] = ()
    busy_share: float | None = None  # of the last moment, in which some kernel ran
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    clock_mhz: int | None = None  # of its multiprocessors
    highest_clock_mhz: int | None = None
    throttled_by: tuple[str, ...] = ()  # why the clock is not higher


@dataclass(frozen=True)
class HostStatus:
    """Memory and cores of this machine."""

    total_bytes: int  # or the cgroup's limit, where that is less
    free_bytes: int  # that a new process can have
    cgroup_limit_bytes: int | None
    cores: int
    busy_share: float | None  # of all cores, by all processes; None at the first look
    processes: int | None = None  # that are watched; None: none are known
    processes_bytes: int | None = None  # resident memory of all of them


@dataclass(frozen=True)
class Expected:
    """What an earlier record says of the settings in force."""

    record_id: str
    verb: str
    memory: str  # "device" or "host"
    peak_bytes: Estimate | None
    samples_per_s: Estimate | None


@dataclass(frozen=True)
class TimeLeft:
    """An estimate: the work that is left, at the present rate."""

    seconds: float
    of: str  # "the epoch", "--epochs 3"


@dataclass(frozen=True, kw_only=True)
class Status:
    """What is watched, and its machine, at `unix_s`."""

    unix_s: float
    of: str  # a record's id, a folder, "process 4711"
    state: State
    verb: str | None = None
    command: str | None = None
    device: Device | None = None
    # how it ended, in a sentence; the exit codes of brimful and of the command
    message: str | None = None
    exit_code: int | None = None
    command_exit_code: int | None = None  # negative: a signal
    part: str | None = None  # what goes on in it: "attempt 2", "trial 4"
    settings: dict[str, Setting] = field(default_factory=dict)
    beat: Heartbeat | None = None
    planned_steps: int | None = None  # of a trial
    silent_s: float | None = None  # since it last printed or reported something
    noise_scale: float | None = None  # of the gradient, in samples
    # of the processes that are watched, on the card where they hold most; and of that card
    device_bytes: int | None = None
    card_bytes: int | None = None
    peak: PhasePeak | None = None  # so far, worst rank; of an imaginary card it is predicted
    budget: Budget | None = None
    expected: Expected | None = None
    left: TimeLeft | None = None
    findings: tuple[Diagnostic, ...] = ()
    tail: dict[str, tuple[str, ...]] = field(default_factory=dict)  # last lines, by stream
    cards: tuple[CardStatus, ...] = ()
    host: HostStatus
