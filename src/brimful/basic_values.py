"""The words that several files of values share. (`brimful.values` has them too.)"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from brimful.sources import Source

Setting = int | float | str | bool


class Outcome(StrEnum):
    """How a trial or an attempt of a run ended. Only the two out-of-memory outcomes make brimful go smaller."""

    COMPLETED = "completed"
    OUT_OF_DEVICE_MEMORY = "out_of_device_memory"
    OUT_OF_HOST_MEMORY = "out_of_host_memory"
    TIMED_OUT = "timed_out"
    KILLED = "killed"  # by a signal that nobody can explain; 9 is "probably for memory"
    CRASHED = "crashed"  # by itself, with the script's own traceback
    UNSUPPORTED = "unsupported"  # the imaginary GPU met a call it does not have
    PROBE_NOT_LOADED = "probe_not_loaded"  # no rank said hello
    NO_STEP = "no_step"  # it ended well and no optimizer ever stepped
    INTERRUPTED = "interrupted"  # Ctrl-C
    TERMINATED = "terminated"  # SIGTERM, as a cluster sends it


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
    requested: Setting | None  # what the user's command said; None if it said nothing
    effective: Setting | None
    why: str
    source: Source
