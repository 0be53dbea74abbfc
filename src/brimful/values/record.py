"""A record: the log of all that, as it can be read back."""

from dataclasses import dataclass

from brimful.values.audit import Audit
from brimful.values.command import Command
from brimful.values.diagnostic import Diagnostic
from brimful.values.machine import Budget, Device, Machine
from brimful.values.memory import MemoryEstimate
from brimful.values.plan import Objective, Plan
from brimful.values.prediction import Prediction
from brimful.values.run import Run
from brimful.values.speed import SpeedEstimate
from brimful.values.trial import TrialResult


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
