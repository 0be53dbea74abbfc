"""Why a trial or an attempt of a run ended: the cause behind its consequences (`brimful.outcomes`
says what follows).

Where several ranks fail, the one that ran out of memory is the cause, and "connection closed by
peer" is a consequence. A trial is cut short by brimful, so what its processes reported comes first;
a run ends on its own, so its exit code does.
"""

import os
import re
import resource
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brimful.measure import gather, host
from brimful.measure.gather import RankFailure, Reported
from brimful.measure.output import tail
from brimful.measure.supervisor import Ending, Stop
from brimful.outcomes import EXHAUSTED, OUT_OF_MEMORY, of_signal
from brimful.units import format_bytes
from brimful.values import Failure, Outcome
from brimful_inside import wire
from brimful_inside.signals import ENDING, MEANINGS, number_of
from brimful_inside.simulator.oom_patterns import (
    CONSEQUENCE,
    DESCRIPTORS,
    DISK,
    PROCESSES,
    SHARED,
    kind_of,
    match_exhausted,
    match_oom,
)

MESSAGE_CHARACTERS = 200  # of an exception's first line: some hold whole tensors

_MEMORY_KINDS = {outcome.value: outcome for outcome in OUT_OF_MEMORY}
_KINDS = {
    **_MEMORY_KINDS,
    **{outcome.value: outcome for outcome in EXHAUSTED},
    "unsupported": Outcome.UNSUPPORTED,
}
# for want of which a thread of a worker cannot hand over a batch
_HANDED_OVER_BY = SHARED, DESCRIPTORS
# where an error without a name says "No space left on device": a lock or a block of multiprocessing
_IN_SHARED_MEMORY = re.compile(r"SemLock|shared_memory|/dev/shm")
# where the same error number is not of a file
_STARTS = re.compile(r"fork|Popen|spawn|start_new_thread")
_SMALL_BYTES = 1 << 30  # of a mount, assumed; Docker's own is 64 MiB, Linux's half of the memory
_FULL_SHARE = 0.02  # free of it, or of a disk, assumed
_SILENT_S = 30.0  # after that error, assumed: longer than a step, and than most of evaluations
# of the rank that failed first, the last words of torchrun, of subprocess (accelerate) and of
# torch.multiprocessing.spawn: its exit code, or the signal that ended it, or the one that torchrun
# got
_LAUNCHER_SAYS = re.compile(
    r"exitcode\s*:\s*(-?\d+)|non-zero exit status (\d+)"
    r"|(?:died with <Signals\.\w+: |Signal (?=\d+ \(SIG)|got signal: |terminated with signal )"
    r"(\d+|SIG[A-Z]+)"
)
# what a loader's parent meets once a worker has been killed, by what it did just then
_WITHOUT_WORKER = re.compile(
    r"DataLoader worker \(pid|multiprocessing[/\\](reductions|connection)\.py"
)
_KILLED = "killed, probably for memory"
_BY_KERNEL = "killed by the kernel for host memory (its oom-kill counter moved)"
_NOT_FOR_MEMORY = (
    "killed, not by this machine's kernel for memory (its oom-kill counter did not move)"
)
_ENDED_IT = "brimful ended it: its processes held more host memory than "

_FINAL = (wire.DOES_NOT_FIT, wire.DOES_NOT_FIT_ELSEWHERE)
_FOLLOWS = (wire.ANOTHER_RANK, wire.DOES_NOT_FIT_ELSEWHERE)


class Cause(NamedTuple):
    outcome: Outcome
    failed: RankFailure | None = None  # the failure that explains it
    sentence: str | None = None  # where there is more to say


class _Signal(NamedTuple):
    number: int  # 0: none
    of: str = ""  # whom it ended, behind a colon, where that was not the command itself


def of_trial(
    ending: Ending, reported: Reported, stderr_tail: str, probe_error: str | None = None
) -> Cause:
    """`probe_error`: the last line of why the probe could not be loaded into one of the
    processes.
    """
    if ending.stop in (Stop.INTERRUPT, Stop.TERMINATE):
        return Cause(Outcome(ending.stop))
    if ending.stop is Stop.HOST_LIMIT:
        return Cause(Outcome.OUT_OF_HOST_MEMORY, None, _ENDED_IT + "the budget")
    if (swallowed := _swallowed(reported)) is not None:
        return Cause(
            Outcome.OUT_OF_DEVICE_MEMORY,
            swallowed,
            "the script caught the error and went on with less",
        )
    fatal = _gravest(reported.failures)
    kind = _KINDS.get(fatal.failure.kind) if fatal is not None else None
    if kind is not None and kind not in EXHAUSTED:
        return Cause(kind, fatal)
    if reported.reports and all(report.ended == "steps_done" for report in reported.reports):
        sentence = None
        if fatal is not None and fatal.failure.raised_by != "ended":
            sentence = _after_measured(fatal.failure)
        return Cause(Outcome.COMPLETED, fatal, sentence)
    by = _signal_of(ending, reported, fatal, stderr_tail)
    if (told := _told_to_end(fatal, by)) is not None:
        return told
    exhausted = _exhausted(fatal, stderr_tail)
    if exhausted is not None and ending.exit_code != 0:
        return exhausted
    if ending.stop is Stop.TIME_LIMIT:
        return Cause(Outcome.TIMED_OUT, fatal)
    if fatal is not None:
        return _killed(ending, by, fatal) if by.number else Cause(Outcome.CRASHED, fatal)
    return _from_outside(ending, by, stderr_tail) or _without_words(ending, reported, probe_error)


def of_run(
    ending: Ending, reported: Reported, stderr_tail: str, by_signal: Outcome | None = None
) -> Cause:
    """`by_signal`: brimful forwarded a signal to end, `interrupted` or `terminated`."""
    if ending.stop is Stop.HOST_LIMIT:
        return Cause(Outcome.OUT_OF_HOST_MEMORY, None, _ENDED_IT + "--host-limit")
    if by_signal is not None:
        return Cause(by_signal)
    fatal = _gravest(reported.failures)
    if ending.exit_code == 0:
        told = _told(reported)  # as Lightning ends after SIGTERM
        return Cause(of_signal(told) if told else Outcome.COMPLETED)
    by = _signal_of(ending, reported, fatal, stderr_tail)
    if (cause := _told_to_end(fatal, by)) is not None:
        return cause
    if (exhausted := _exhausted(fatal, stderr_tail)) is not None:
        return exhausted
    if fatal is None or (follows(fatal.failure) and not is_for_memory(fatal.failure)):
        caught = (
            f for f in reported.failures if f.failure.caught and f.failure.kind in _MEMORY_KINDS
        )
        # the script gave up over it
        fatal = next((f for f in caught if f.failure.step >= reported.steps), None)
    if fatal is not None and by.number:
        return _killed(ending, by, fatal)
    if fatal is not None:
        on_host = all(report.device == "cpu" for report in reported.reports)
        missing = Outcome.OUT_OF_HOST_MEMORY if on_host else Outcome.OUT_OF_DEVICE_MEMORY
        otherwise = missing if is_for_memory(fatal.failure) else Outcome.CRASHED
        return Cause(_MEMORY_KINDS.get(fatal.failure.kind, otherwise), fatal)
    return _from_outside(ending, by, stderr_tail) or Cause(
        Outcome.CRASHED, next(iter(reported.failures), None)
    )


def execution_fields(
    cause: Cause, ending: Ending, reported: Reported, folder: str, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """What a trial's result and a run's attempt have in common (`values.Execution`), but for their
    rates.
    """
    all_notes = [
        *filter(None, [cause.sentence]),
        *notes,
        *(note for report in reported.reports for note in report.notes),
    ]
    return {
        "outcome": cause.outcome,
        "reports": reported.reports,
        "phases": gather.worst_phases(reported.reports),
        "peak": gather.whole_peak(reported.reports),
        "duration_s": ending.duration_s,
        "folder": folder,
        "failure": cause.failed.failure if cause.failed else None,
        "failed_rank": cause.failed.rank if cause.failed and len(reported.reports) > 1 else None,
        "exit_code": ending.exit_code,
        "process_tree_host_bytes": ending.peak_host_bytes,
        "notes": tuple(dict.fromkeys(all_notes)),
    }


def is_final(failure: Failure) -> bool:
    """Whether a training that makes its micro-batches smaller itself could not: no smaller batch
    size would help it.
    """
    return failure.meaning in _FINAL


def is_for_memory(failure: Failure) -> bool:
    """Whether memory was missing, whatever the words of the error say."""
    return failure.kind in _MEMORY_KINDS or failure.meaning in (*_FINAL, wire.SMALLER_FITS)


def follows(failure: Failure) -> bool:
    """Whether it only says that another process failed."""
    return failure.meaning in _FOLLOWS or any(
        map(CONSEQUENCE.search, (failure.type, failure.message))
    )


def _swallowed(reported: Reported) -> RankFailure | None:
    """Out of memory in training that the script caught: it went on, and yet the requested size does
    not fit.

    On an imaginary card alone: on a real one libraries try algorithms and catch such errors in
    ordinary use.
    """
    if not any(report.device == "imaginary" for report in reported.reports):
        return None
    caught = (f for f in reported.failures if f.failure.caught and f.failure.phase == "train")
    return next((f for f in caught if f.failure.kind == Outcome.OUT_OF_DEVICE_MEMORY), None)


def _gravest(failures: Sequence[RankFailure]) -> RankFailure | None:
    """Of those that nobody caught: memory before all others, what follows from another rank's
    failure last.
    """
    uncaught = [f for f in failures if not f.failure.caught]

    def order(failed: RankFailure) -> tuple[bool, ...]:
        return (
            not is_for_memory(failed.failure),
            follows(failed.failure),
            failed.failure.meaning in MEANINGS.values(),
            failed.failure.kind not in _MEMORY_KINDS,
        )

    return min(uncaught, key=order, default=None)


def _exhausted(fatal: RankFailure | None, stderr_tail: str) -> Cause | None:
    """The cause, where it is a resource other than memory: by the words of the error, or of
    standard error where the error only follows from another process's.
    """
    failure = fatal.failure if fatal else None
    kind = failure.kind if failure else None
    if failure is None or follows(failure):
        printed = match_exhausted("", stderr_tail)
        kind = kind_of(printed) if printed else kind
    if kind == DISK and failure is not None and _IN_SHARED_MEMORY.search(failure.traceback):
        # by the size of the mount, where the words do not say which disk was full
        total, free = host.shm_bytes() or 0, host.shm_free_bytes() or 0
        kind = SHARED if total < _SMALL_BYTES or free < total * _FULL_SHARE else DISK
    words = f"{failure.traceback}{failure.message}" if failure else stderr_tail
    if kind == PROCESSES and "[Errno 11]" in words and not _STARTS.search(words):
        return None  # another process holds a lock
    outcome = _KINDS.get(kind or "")
    if outcome is None or outcome not in EXHAUSTED:
        return None
    return Cause(outcome, fatal, _SENTENCES[outcome](failure.message if failure else stderr_tail))


def _of_shared_memory(message: str) -> str:
    return (
        "/dev/shm ran full, through which loader workers hand over their batches: it has "
        f"{format_bytes(host.shm_bytes() or 0)}, {format_bytes(host.shm_free_bytes() or 0)} of it "
        "free now"
    )


def _of_disk(message: str) -> str:
    """Names the path of the error, and what is free of the disks that may be meant."""
    path = next(iter(re.findall(r"'(/[^']+)'", message)), "")
    folders = [os.path.dirname(path), os.environ.get("TMPDIR", "/tmp"), os.getcwd()]
    disks = {folder: shutil.disk_usage(folder) for folder in folders if os.path.isdir(folder)}
    full = {folder: disk for folder, disk in disks.items() if disk.free < disk.total * _FULL_SHARE}
    free = (
        f"{folder} has {format_bytes(disk.free)} free of {format_bytes(disk.total)} now"
        for folder, disk in (full or disks).items()
    )
    return f"a disk ran full{f', for {path}' if path else ''}: {', '.join(free)}"


def _limit(number: int) -> str:
    limits = resource.getrlimit(number)
    soft, hard = ("none here" if part == resource.RLIM_INFINITY else f"{part:,}" for part in limits)
    return f"{soft} (it may be raised to {hard})" if soft != hard else soft


_SENTENCES = {
    Outcome.FULL_SHARED_MEMORY: _of_shared_memory,
    Outcome.FULL_DISK: _of_disk,
    Outcome.NO_FILE_DESCRIPTORS: lambda _: (
        "a process of the command had no file descriptors left: its limit (ulimit -n) is "
        f"{_limit(resource.RLIMIT_NOFILE)}"
    ),
    Outcome.NO_PROCESSES: lambda _: (
        "the command could start no further thread or process: the user's limit (ulimit -u) is "
        f"{_limit(resource.RLIMIT_NPROC)}, and a container can have a smaller one"
    ),
    Outcome.FULL_ADDRESS_SPACE: lambda _: (
        "a process of the command came to its limit of address space (ulimit -v, here in bytes), "
        f"which is not its memory: {_limit(resource.RLIMIT_AS)}"
    ),
}


def waits_for_lost_batch(folder: Path) -> bool:
    """Whether a worker's thread could not hand over a batch, for which the script now waits for
    good: torch prints the error, and tells nobody.
    """
    if gather.silent_s(folder) <= _SILENT_S:
        return False
    printed = match_exhausted("", tail(folder / "stderr.txt"))
    return printed is not None and printed.kind in _HANDED_OVER_BY


def _after_measured(failure: Failure) -> str:
    where = f" ({failure.where})" if failure.where else ""
    words = ": ".join(
        filter(
            None, [failure.type, failure.message.strip().partition("\n")[0][:MESSAGE_CHARACTERS]]
        )
    )
    return (
        f"after the measured steps the script stopped with {words}{where}; that brimful had "
        "ended its loaders can be why"
    )


def _from_outside(ending: Ending, by: _Signal, stderr_tail: str) -> Cause | None:
    """What exit code, counters and the error stream say where no process reported why; None where
    they say nothing.
    """
    code = ending.exit_code
    if code == 0:
        return None
    if ending.oom_kills and code is not None:
        return _killed(ending, by)
    pattern = match_oom("", stderr_tail)
    if pattern is not None:
        return Cause(
            _KINDS[pattern.kind], None, "recognised from what the script printed to standard error"
        )
    return _killed(ending, by) if by.number else None


def _signal_of(
    ending: Ending, reported: Reported, fatal: RankFailure | None, stderr_tail: str
) -> _Signal:
    """The signal that ended the command, or told it to end: one of its ranks or of their workers
    may have got it. None where brimful ended it, or the script raised an error of its own."""
    if ending.stop is not None:
        return _Signal(0)
    if fatal is not None:
        words = f"{fatal.failure.traceback}\n{fatal.failure.message}"
        if fatal.failure.worker_signal and _WITHOUT_WORKER.search(words):
            return _Signal(fatal.failure.worker_signal, ": a worker of a loader")
        if not follows(fatal.failure):
            return _Signal(0)
    for exit_code, another, number in reversed(_LAUNCHER_SAYS.findall(stderr_tail)):
        if number:
            number = signal.Signals[number] if number.startswith("SIG") else int(number)
        else:
            number = number_of(int(exit_code or another))
        return _Signal(number or _told(reported), ": one of its ranks")
    return _Signal(number_of(ending.exit_code) or _told(reported))


def _told(reported: Reported) -> int:
    """The signal to end that the command's first process got, and handled."""
    return next((number for number in reported.signals if number in ENDING), 0)


def _told_to_end(fatal: RankFailure | None, by: _Signal) -> Cause | None:
    if fatal is not None and fatal.failure.meaning in MEANINGS.values():
        return Cause(Outcome(fatal.failure.meaning))
    return Cause(of_signal(by.number)) if by.number in MEANINGS else None


def _killed(ending: Ending, by: _Signal, fatal: RankFailure | None = None) -> Cause:
    if ending.oom_kills:
        return Cause(Outcome.OUT_OF_HOST_MEMORY, fatal, _BY_KERNEL)
    sentence = f"ended by signal {by.number}"
    if by.number == signal.SIGKILL:
        sentence = _KILLED if ending.oom_kills is None else _NOT_FOR_MEMORY
    return Cause(Outcome.KILLED, fatal, sentence + by.of)


def _without_words(ending: Ending, reported: Reported, probe_error: str | None) -> Cause:
    code, trained = ending.exit_code, any(report.steps for report in reported.reports)
    if reported.reports or ("rank" in reported.roles and not (probe_error and code in (0, None))):
        if code == 0:
            return Cause(Outcome.COMPLETED if trained else Outcome.NO_STEP)
        return Cause(Outcome.CRASHED)
    if probe_error:
        return Cause(
            Outcome.PROBE_NOT_LOADED,
            None,
            f"brimful could not load its probe into the process: {probe_error}",
        )
    return Cause(Outcome.PROBE_NOT_LOADED if code == 0 or not reported.roles else Outcome.CRASHED)
