"""Memory as a test: the jobs that `check` is asked about, their baselines, and what it finds."""

from dataclasses import dataclass, field

from brimful.values.estimates import Held
from brimful.values.given import Setting


@dataclass(frozen=True)
class Job:
    """A command with its card and its limits, by the keys of `brimful.toml`. A limit is "+2 %" or
    "+500 MiB" (added to the baseline), or "20 GiB"; of a step "+10 %", "+5 ms" or "300 ms".
    """

    command: str | list[str]
    gpu: str | None = None
    gpu_memory: str | None = None
    budget: str | None = None
    set: dict[str, Setting] = field(default_factory=dict)
    must_fit: bool = True
    no_findings: tuple[str, ...] = ()  # codes of `audit`
    peak_device: str = "+2 %"
    peak_reserved: str | None = None
    peak_allocated: str | None = None
    step: str | None = None


@dataclass(frozen=True)
class Baseline:
    """What a prediction of a job says, as it is kept to compare later ones with it."""

    brimful: str  # version
    torch: str  # release, without the build ("+cpu")
    gpu: str  # "a100-40gb", "2 x a100-40gb"
    batch_size: int | None
    figures: dict[str, int | float]  # "peak_device_bytes", "step_s", ...; those that are known
    phase: str  # in which the peak lies; "" where nobody knows
    held: tuple[Held, ...]  # what the device peak is made of


@dataclass(frozen=True)
class Judged:
    """A figure of a job beside its baseline and its limit."""

    code: str  # "peak_device_bytes", "step_s", ...
    now: int | float  # predicted
    before: int | float | None  # None: there is no baseline
    limit: str | None  # as the job has it; None: any value will do
    passed: bool | None  # the limit; None: there is none, or it was not judged


@dataclass(frozen=True)
class CheckedJob:
    """What became of a job."""

    name: str
    command_line: str
    gpu: str
    exit_code: int = 0  # 3 where it is not as the job asks; that of the error without a prediction
    judged: tuple[Judged, ...] = ()
    grown: tuple[Held, ...] = ()  # how much more than in the baseline; below 0 what holds less
    failed: tuple[str, ...] = ()  # sentences: what is not as the job asks, or the error
    notes: tuple[str, ...] = ()
    record: str | None = None  # folder of the prediction's


@dataclass(frozen=True)
class Check:
    """The answer of `check`."""

    jobs: tuple[CheckedJob, ...]
    source: str  # the file that has the jobs
    lock: str  # the file that has the baselines
    updated: bool  # the baselines were written
