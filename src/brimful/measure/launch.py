"""One trial: the command in processes of its own with the probe inside, from start to sample.

The child needs torch alone: brimful may live in another environment (pipx). Nothing of the trial outlives it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brimful_inside
from brimful import codec
from brimful.command import fill
from brimful.errors import DiskFull, NoSuchCommand
from brimful.measure import gather, outcome, single_rank
from brimful.measure.device import host
from brimful.measure.gpus import to_card
from brimful.measure.process_tree import MemorySampler, ProcessTree
from brimful.values import Device, Outcome, Trial, TrialKind, TrialResult
from brimful_inside import wire

_POLL_S = 0.05
_POLL_UNDER_LIMIT_S = 0.01  # at 3 GiB/s, which is what one thread can fill, 30 MiB
_HOST_EVERY_S = 0.2  # reading PSS of a family costs some milliseconds
_HOST_OF_A_TRACE_EVERY_S = 0.5  # which holds no data, and whose limit is the card's
_TAIL_BYTES = 20_000
_HELLO_BYTES = 4096  # enough for the roles that a process tells first
_PATIENCE_S = 20.0  # for a rank's hello, after some process could not be entered
_NO_ROOM_BYTES = 8192

OnProgress = Callable[[wire.Progress | None], None]


@dataclass(frozen=True)
class _Waited:
    exit_code: int | None
    timed_out: bool
    over_host_limit: bool
    interrupted: bool
    peak_host_bytes: int
    duration_s: float


def launch(
    trial: Trial, folder: Path, record_folder: Path, on_progress: OnProgress = lambda _: None, scans: Sequence[Path] = ()
) -> TrialResult:
    """Runs `trial` with its files in `folder` (made here) and tells what it showed; paths are kept relative to the record.

    `scans` are files of earlier trials of the same command, with what they saw of its data sets (`measure.scanned`).
    An interrupt (Ctrl-C) ends the family and gives a sample with the outcome `interrupted`. Raises NoSuchCommand when the
    program cannot be started at all, UsageError for an open placeholder, DiskFull when the orders cannot be written.
    """
    argv, of_launcher = _words(trial)
    must_be_startable(argv[0])
    orders_path = _write_orders(trial, folder, scans)
    kills_before = host.oom_kills()
    with open(folder / "stdout.txt", "wb") as out, open(folder / "stderr.txt", "wb") as err:
        process = _start(argv, {**environment(trial, orders_path), **of_launcher}, out, err)
        waited = _wait(process, ProcessTree(process.pid, str(orders_path)), trial, folder, on_progress)
    _must_have_had_room(folder)
    return _sample(trial, folder, record_folder, waited, host.oom_kills() - kills_before)


def _words(trial: Trial) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command, and what its launcher would add to the environment where one rank is started without it."""
    argv = fill(trial.command, trial.settings)
    device = trial.device
    if device.ranks is None or device.as_rank is None:
        return argv, {}
    argv, of_launcher = single_rank.without_launcher(argv)
    return argv, {**of_launcher, **single_rank.alone_environment(device.ranks, device.as_rank, device.cards)}


def must_be_startable(program: str) -> None:
    if shutil.which(program) is None:
        raise NoSuchCommand(
            problem=f"there is no command {program!r}",
            explanation="it is neither on the PATH nor a file that can be executed",
            suggestion="check its spelling; a script is started as: python train.py",
        )


def orders_of(trial: Trial, folder: Path, scans: Sequence[Path] = ()) -> wire.TrialConfig:
    """What the child has to do for this trial."""
    imaginary = trial.device.kind == "imaginary"
    return wire.TrialConfig(
        folder=str(folder),
        device=trial.device.kind,
        card=to_card(trial.device.gpu) if imaginary and trial.device.gpu else None,
        capacity_bytes=trial.capacity_bytes,
        cards=trial.device.cards,
        steps=trial.steps,
        warmup_steps=trial.warmup_steps,
        see_eval=trial.see_eval,
        trace=imaginary and trial.kind in (TrialKind.TRACE, TrialKind.MEMORY),
        what_if=trial.what_if,
        measure_host_memory=trial.device.kind == "cpu" and trial.kind is TrialKind.MEMORY,
        worst_batch=trial.kind in (TrialKind.TRACE, TrialKind.MEMORY),
        scans=[str(path.resolve()) for path in scans],
        checksums=trial.kind is TrialKind.AUDIT,
        settings=dict(trial.settings),
        parent_pid=os.getpid(),
    )


def _write_orders(trial: Trial, folder: Path, scans: Sequence[Path]) -> Path:
    folder = folder.resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "trial_config.json"
        codec.write_orders(orders_of(trial, folder, scans), path)
    except OSError as error:
        if DiskFull.caused(error):
            raise DiskFull(str(folder), kept="the trials before this one") from error
        raise
    return path


def _must_have_had_room(folder: Path) -> None:
    """Raises DiskFull where the disk is full now: what the child could not write would look like something it did not do."""
    if hasattr(os, "statvfs"):
        disk = os.statvfs(folder)
        blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail  # some are kept back for root
        if disk.f_blocks and blocks * disk.f_frsize < _NO_ROOM_BYTES:
            raise DiskFull(str(folder), kept="the trials before this one")


def environment(trial: Trial, orders_path: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The child's environment: the user's, the command's and the trial's additions, bootstrap in front of PYTHONPATH."""
    variables = with_the_door(trial.device, {**trial.command.environment, **trial.environment}, orders_path, base)
    variables["PYTHONDONTWRITEBYTECODE"] = "1"  # a trial leaves no trace; caches that are there are still read
    return variables


def with_the_door(
    device: Device, added: Mapping[str, str], orders_path: Path, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The user's environment with what is `added`, and with what lets brimful into every Python process of the command."""
    variables = dict(os.environ if base is None else base)
    if device.kind == "imaginary":
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # it is about this machine's cards; the command's own word stays
    variables.update(added)
    bootstrap = str(Path(brimful_inside.__file__).resolve().parent / "bootstrap")
    variables["PYTHONPATH"] = os.pathsep.join([bootstrap, *filter(None, [variables.get("PYTHONPATH")])])
    variables[wire.TRIAL_CONFIG_VARIABLE] = str(orders_path)
    if device.kind == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""  # a script that takes a card when it sees one must not see one
    return variables


def _start(argv: tuple[str, ...], variables: dict[str, str], out, err) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=variables, start_new_session=True)
    except OSError as error:
        raise NoSuchCommand(
            problem=f"{argv[0]!r} could not be started: {error.strerror}",
            explanation="the system refused to run it",
            suggestion="check that it is executable and made for this machine",
        ) from error


def _wait(
    process: subprocess.Popen[bytes], family: ProcessTree, trial: Trial, folder: Path, on_progress: OnProgress
) -> _Waited:
    """Waits for the command's end, or for the limit of time or host memory; then ends the family in every case."""
    started = time.monotonic()
    traces = trial.device.kind == "imaginary" and trial.host_limit_bytes is None
    scale = MemorySampler(family, trial.host_limit_bytes, _HOST_OF_A_TRACE_EVERY_S if traces else _HOST_EVERY_S)
    poll_s = _POLL_S if trial.host_limit_bytes is None else _POLL_UNDER_LIMIT_S
    timed_out = interrupted = blind = False
    try:
        while process.poll() is None and not (timed_out or scale.over or blind):
            time.sleep(poll_s)
            now = time.monotonic()
            if scale.look(now):
                on_progress(_latest_progress(folder))
                blind = _rank_could_not_be_entered(folder)
            timed_out = now - started > trial.time_limit_s
    except KeyboardInterrupt:
        interrupted = True
    finally:
        with _interrupts_held():
            family.end(grace_s=0.0 if scale.over else 3.0)
            code = process.wait()
    ended_by_us = timed_out or scale.over or interrupted or blind
    duration_s = time.monotonic() - started
    return _Waited(None if ended_by_us else code, timed_out, scale.over, interrupted, scale.peak_bytes, duration_s)


class _interrupts_held:
    """Holds back Ctrl-C and signals to end while children are ended, so that none is left behind by an impatient second one."""

    def __enter__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        with contextlib.suppress(ValueError):  # not in the main thread: nothing to hold
            for number in (signal.SIGINT, signal.SIGTERM, *filter(None, [getattr(signal, "SIGHUP", None)])):
                self._before[number] = signal.signal(number, signal.SIG_IGN)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _rank_could_not_be_entered(folder: Path) -> bool:
    """Whether a rank told that the probe is not in it: it would train on, unseen and uncut, for as long as it likes.

    A process that could not even say hello may be a rank, or a helper with an old Python that is soon gone: it counts when
    no rank has said hello for a while.
    """
    closed = list(folder.glob("probe-error-*.txt"))
    if not closed:
        return False
    ranks = {path.stem.removeprefix("wire-") for path in folder.glob("wire-*.jsonl") if '"role": "rank"' in _head(path)}
    if ranks & {path.stem.removeprefix("probe-error-") for path in closed}:
        return True
    return not ranks and time.time() - min(path.stat().st_mtime for path in closed) > _PATIENCE_S


def _head(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(_HELLO_BYTES).decode(errors="replace")


def _latest_progress(folder: Path) -> wire.Progress | None:
    latest: wire.Progress | None = None
    for path in folder.glob("wire-*.jsonl"):
        for line in reversed(_tail(path, 4096).splitlines()):
            progress = codec.progress_of(line.encode())
            if progress is not None:
                if latest is None or progress.unix_s > latest.unix_s:
                    latest = progress
                break
    return latest


def _tail(path: Path, size: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _sample(trial: Trial, folder: Path, record_folder: Path, waited: _Waited, oom_kills: int) -> TrialResult:
    events = [codec.read_wire(path) for path in sorted(folder.glob("wire-*.jsonl"))]
    reports, hellos = gather.last_reports(events), gather.hellos(events)
    ending = outcome.Ending(
        exit_code=waited.exit_code,
        timed_out=waited.timed_out,
        over_host_limit=waited.over_host_limit,
        interrupted=waited.interrupted,
        oom_kills=oom_kills,
        rank_hellos=sum(1 for hello in hellos if hello.role == "rank"),
        hellos=len(hellos),
        stderr_tail=_tail(folder / "stderr.txt", _TAIL_BYTES),
        door_trouble=_door_trouble(folder),
    )
    how, failure, sentence = outcome.outcome_of(ending, reports, gather.failures(events))
    where = folder.resolve().relative_to(record_folder.resolve())
    slowed = trial.device.kind == "cpu" and trial.kind is TrialKind.MEMORY  # what makes resident memory true costs time
    timed = how is not Outcome.INTERRUPTED and not slowed
    return TrialResult(
        trial=trial,
        outcome=how,
        reports=reports,
        phases=gather.worst_phases(reports),
        peak=gather.whole_peak(reports),
        samples_per_step=gather.samples_per_step(reports, trial.device.ranks or 1),
        step_s=gather.step_times(reports) if timed else (),
        samples_per_s=gather.samples_per_second(reports) if timed else None,
        loading_share=gather.loading_share(reports),
        duration_s=waited.duration_s,
        folder=str(where),
        failure=failure,
        exit_code=waited.exit_code,
        process_tree_host_bytes=waited.peak_host_bytes or None,
        notes=tuple(dict.fromkeys([*filter(None, [sentence]), *(note for r in reports for note in r.notes)])),
    )


def _door_trouble(folder: Path) -> str | None:
    """Why a process could not be entered (an older Python, say), in the last line of what its bootstrap wrote."""
    for path in sorted(folder.glob("probe-error-*.txt")):
        lines = [line for line in _tail(path, _TAIL_BYTES).splitlines() if line.strip()]
        if lines:
            return lines[-1].strip()
    return None


def failure_text(sample: TrialResult, record_folder: Path) -> str:
    """The script's own words about its end: the traceback it told, else the tail of its standard error."""
    if sample.failure is not None:
        return sample.failure.traceback
    return _tail(record_folder / sample.folder / "stderr.txt", _TAIL_BYTES)


__all__ = ["environment", "failure_text", "launch", "must_be_startable", "orders_of", "with_the_door"]
