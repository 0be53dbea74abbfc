"""The table of outcomes: for each the words that people read, the exit code of a run that ends so,
and what follows from it.
"""

from typing import NamedTuple

from brimful.values import Outcome


class _Row(NamedTuple):
    text: str
    exit_code: int = 5
    out_of_memory: bool = False  # a smaller size needs less
    # a smaller size may do where this one did not: a search tries smaller ones; a run ends
    script_failed: bool = False


OUTCOMES = {
    Outcome.COMPLETED: _Row("completed", 0),
    Outcome.OUT_OF_DEVICE_MEMORY: _Row("out of device memory", 3, out_of_memory=True),
    Outcome.OUT_OF_HOST_MEMORY: _Row("out of host memory", 3, out_of_memory=True),
    Outcome.FULL_SHARED_MEMORY: _Row("/dev/shm is full"),
    Outcome.TIMED_OUT: _Row("timed out"),
    Outcome.KILLED: _Row("killed"),
    Outcome.CRASHED: _Row("the script raised an error", script_failed=True),
    Outcome.UNSUPPORTED: _Row("not supported"),
    Outcome.PROBE_NOT_LOADED: _Row("the probe was not loaded"),
    Outcome.NO_STEP: _Row("no optimizer stepped", script_failed=True),
    Outcome.INTERRUPTED: _Row("interrupted", 130),
    Outcome.TERMINATED: _Row("terminated", 143),
}
SHARED_MEMORY_HELP = (
    "give it more room (Docker: --shm-size=8g), or take fewer loader workers, or num_workers=0; "
    "brimful tries no smaller batch size for it"
)
OUT_OF_MEMORY = tuple(outcome for outcome, row in OUTCOMES.items() if row.out_of_memory)
SCRIPT_FAILED = tuple(outcome for outcome, row in OUTCOMES.items() if row.script_failed)
