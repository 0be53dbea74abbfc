"""What is seen of a run at hand, and of the machine that it runs on, at one moment. Absent is
None."""

from dataclasses import dataclass, field
from enum import StrEnum

from brimful.values.executions import Heartbeat
from brimful.values.given import Device, Diagnostic, Estimate
from brimful_inside.wire import PhasePeak


class State(StrEnum):
    """Whether what is watched still goes on."""

    GOING = "going"
    ENDED = "ended"
    CUT_OFF = "cut_off"  # brimful itself is gone, and the record has no end
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
    # those that hold memory, the largest first; () where the driver does not say, as in many
    # containers
    processes: tuple[CardProcess, ...]
    busy_share: float | None  # of the last moment, in which some kernel ran
    power_w: float | None
    power_limit_w: float | None
    temperature_c: int | None
    clock_mhz: int | None  # of its multiprocessors
    highest_clock_mhz: int | None
    throttled_by: tuple[str, ...]  # why the clock is not higher

    @property
    def watched_bytes(self) -> int:
        return sum(process.bytes for process in self.processes if process.watched)


@dataclass(frozen=True)
class HostStatus:
    """Memory and cores of this machine."""

    total_bytes: int  # or the cgroup's limit, where that is less
    free_bytes: int  # that a new process can have
    cgroup_limit_bytes: int | None
    cores: int  # by affinity and cgroup quota
    busy_cores: int  # by all processes
    processes: int | None = None  # that are watched; None: none are known
    # resident memory: of one process RSS, of several PSS (shared pages divided among them)
    processes_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Status:
    """What is watched, and its machine, at `unix_s`. Estimates have what they rest on as note."""

    unix_s: float
    of: str  # a record's id, a folder, "process 4711"
    state: State
    command: str | None = None
    device: Device | None = None
    # how it ended, in a sentence; the exit codes of brimful and of the command
    message: str | None = None
    exit_code: int | None = None
    command_exit_code: int | None = None  # negative: a signal
    part: str | None = None  # what goes on in it, or came last: "attempt 2", "trial 4"
    beat: Heartbeat | None = None
    silent_s: float | None = None  # since it last printed or reported something
    peak: PhasePeak | None = None  # so far, worst rank; of an imaginary card it is predicted
    # what an earlier record of the same command says of the settings in force
    expected_peak_bytes: Estimate | None = None  # on the card, or on the host without one
    expected_samples_per_s: Estimate | None = None
    left_s: Estimate | None = None  # to the end of what the note names
    findings: tuple[Diagnostic, ...] = ()
    tail: dict[str, tuple[str, ...]] = field(default_factory=dict)  # last lines, by stream
    cards: tuple[CardStatus, ...]
    host: HostStatus
