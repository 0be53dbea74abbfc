"""The table of outcomes: for each the words that people read, the exit code of a run that ends so,
and what follows from it.

What a signal means stands in `brimful_inside.signals`, what it makes of an ending below: a process
that was told to end is no failure, and the same command goes on after it.
"""

from typing import NamedTuple

from brimful.errors import TOLD_TO_END, BrimfulError
from brimful.values import Outcome
from brimful_inside.signals import MEANINGS


class _Row(NamedTuple):
    text: str
    exit_code: int = 5
    out_of_memory: bool = False  # a smaller size needs less
    # a smaller size may do where this one did not: a search tries smaller ones; a run ends
    script_failed: bool = False
    # of a resource that a smaller size is no remedy for, what is one
    remedy: str = ""
    stopped: bool = False  # from outside: the same command again may go on where it was
    # a signal asked for it: what a search that met it ends with
    told_to_end: type[BrimfulError] | None = None


OUTCOMES = {
    Outcome.COMPLETED: _Row("completed", 0),
    Outcome.OUT_OF_DEVICE_MEMORY: _Row("out of device memory", 3, out_of_memory=True),
    Outcome.OUT_OF_HOST_MEMORY: _Row("out of host memory", 3, out_of_memory=True),
    Outcome.FULL_SHARED_MEMORY: _Row(
        "/dev/shm is full",
        remedy="give it more room (Docker: --shm-size=8g), or take fewer loader workers, or "
        "num_workers=0",
    ),
    Outcome.FULL_DISK: _Row(
        "a disk is full",
        remedy="free some of it, or let the script write to another one (TMPDIR for temporary "
        "files)",
    ),
    Outcome.NO_FILE_DESCRIPTORS: _Row(
        "no file descriptors are left",
        remedy="raise the limit (ulimit -n 65536), or take fewer loader workers, or call "
        'torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
    Outcome.NO_PROCESSES: _Row(
        "no threads or processes are left",
        remedy="raise the limit (ulimit -u; Docker: --pids-limit), or take fewer loader workers "
        "and threads (OMP_NUM_THREADS=1)",
    ),
    Outcome.FULL_ADDRESS_SPACE: _Row(
        "the limit of address space is reached",
        remedy="raise or lift it (ulimit -v unlimited; of a cluster's job, its memory), or give a "
        "smaller batch size yourself",
    ),
    Outcome.TIMED_OUT: _Row("timed out"),
    Outcome.KILLED: _Row("killed", stopped=True),
    Outcome.CRASHED: _Row("the script raised an error", script_failed=True),
    Outcome.UNSUPPORTED: _Row("not supported"),
    Outcome.PROBE_NOT_LOADED: _Row("the probe was not loaded"),
    Outcome.NO_STEP: _Row("no optimizer stepped", script_failed=True),
    **{
        Outcome(meaning): _Row(meaning, kind.exit_code, stopped=True, told_to_end=kind)
        for meaning, kind in TOLD_TO_END.items()
    },
}
OUT_OF_MEMORY = tuple(outcome for outcome, row in OUTCOMES.items() if row.out_of_memory)
EXHAUSTED = tuple(outcome for outcome, row in OUTCOMES.items() if row.remedy)
STOPPED = (*EXHAUSTED, *(outcome for outcome, row in OUTCOMES.items() if row.stopped))
SCRIPT_FAILED = tuple(outcome for outcome, row in OUTCOMES.items() if row.script_failed)


def of_signal(number: int) -> Outcome:
    """Of a process that this signal ended, or that ended itself because of it."""
    return Outcome(MEANINGS[number]) if number in MEANINGS else Outcome.KILLED


def remedy(outcome: Outcome) -> str:
    """What to do about a resource that is exhausted."""
    return f"{OUTCOMES[outcome].remedy}; brimful tries no smaller batch size for it"
