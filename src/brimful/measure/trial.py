"""One trial: the command for a few steps with the probe inside, from its start to its result.

The child needs torch alone: brimful may live in another environment (pipx). Nothing of the trial
outlives it.
"""

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from brimful import masking
from brimful.command import fill
from brimful.errors import DiskFull
from brimful.measure import gather, kept_files, outcome, single_rank
from brimful.measure.gpus import to_card
from brimful.measure.output import OutputFiles, tail
from brimful.measure.shared_imports import SharedImports
from brimful.measure.supervisor import (
    Ending,
    Watch,
    environment_with_probe,
    require_startable,
    supervise,
    write_config,
)
from brimful.measure.wire_files import WireFiles
from brimful.outcomes import OUTCOMES
from brimful.values import Trial, TrialKind, TrialResult
from brimful_inside import wire
from brimful_inside.simulator.allocator_settings import conf_in

_HEARTBEAT_S = 0.2
# for the first rank to report in, after the probe could not be loaded into some process
_PATIENCE_S = 20.0
AUDITED_EVAL_BATCHES = 5  # so that a batch of an evaluation has a time
_NO_ROOM_BYTES = 8192
_KEPT = "the trials before this one"

OnProgress = Callable[[wire.Progress | None], None]


def run_trial(
    trial: Trial,
    folder: Path,
    record_folder: Path,
    on_progress: OnProgress = lambda _: None,
    scans: Sequence[Path] = (),
    imports: SharedImports | None = None,
) -> TrialResult:
    """Runs `trial` with its files in `folder` (made here); paths in the result are relative to the
    record.

    `scans`: files of earlier trials of the same command (`measure.carry_over`). `imports`: for the
    process of a trial on an imaginary card, where time is not measured. Ctrl-C gives a result with
    the outcome `interrupted`, SIGTERM one with `terminated`. Raises NoSuchCommand, UsageError for
    an open placeholder, DiskFull when nothing can be written.
    """
    argv, device, of_launcher = fill(trial.command, trial.settings), trial.device, {}
    if device.ranks is not None and device.as_rank is not None:
        # one rank is started without its launcher, with what that would add to its environment
        argv, of_launcher = single_rank.without_launcher(argv)
        of_launcher |= single_rank.alone_environment(device.ranks, device.as_rank, device.cards)
    masking.learn(argv, trial.settings)
    require_startable(argv[0])
    config = config_of(trial, folder.resolve(), scans)
    config_path = write_config(config, _KEPT)
    # a trial leaves no trace; caches that are there are still read
    added = {**trial.command.environment, "PYTHONDONTWRITEBYTECODE": "1"}
    variables = {**environment_with_probe(trial.device, added, config_path), **of_launcher}
    start = None
    if imports is not None and trial.device.kind == "imaginary":
        start = functools.partial(imports.fork, config, argv, variables, trial.time_limit_s)

    files = WireFiles(folder)

    def heartbeat(seconds: float, host_bytes: int) -> bool:
        files.look()
        newest = files.latest(wire.Progress).values()
        on_progress(max(newest, key=lambda progress: progress.unix_s, default=None))
        return _a_rank_is_without_the_probe(folder) or outcome.waits_for_lost_batch(folder)

    watch = Watch(heartbeat, _HEARTBEAT_S, trial.host_limit_bytes, trial.time_limit_s)
    with OutputFiles(folder) as output:
        ending = supervise(argv, variables, config_path, output, watch, start=start)
    if imports is not None:
        imports.learn(argv, folder)
    _require_room(folder)
    result = _result(trial, folder, record_folder, ending)
    kept_files.mask(folder)
    return result


def config_of(trial: Trial, folder: Path, scans: Sequence[Path] = ()) -> wire.TrialConfig:
    """What the child has to do for this trial."""
    imaginary, audits = trial.device.kind == "imaginary", trial.kind is TrialKind.AUDIT
    eval_batches = AUDITED_EVAL_BATCHES if audits and not imaginary else wire.EVAL_BATCHES
    eval_batches = wire.NO_LIMIT if trial.ends.steps == wire.NO_LIMIT else eval_batches
    return wire.TrialConfig(
        folder=str(folder),
        device=trial.device.kind,
        card=to_card(trial.device.gpu, trial.others) if imaginary and trial.device.gpu else None,
        capacity_bytes=trial.capacity_bytes,
        allocator_conf=conf_in({**os.environ, **trial.command.environment}) or "",
        cards=trial.device.cards,
        ends=replace(trial.ends, eval_batches=eval_batches),
        trace=imaginary and trial.kind is not TrialKind.SPEED,
        what_if=list(trial.what_ifs),
        measure_host_memory=_slowed(trial),
        worst_batch=(not trial.as_drawn or trial.largest_at is not None)
        and (trial.kind in (TrialKind.TRACE, TrialKind.MEMORY) or (audits and imaginary)),
        largest_at=trial.largest_at,
        scans=[str(path.resolve()) for path in scans],
        audits=audits,
        settings=dict(trial.settings),
        time_loader=trial.time_loader,
        find_places=trial.find_places,
        places=dict(trial.command.places),
        watches_branches=trial.watches_branches or bool(trial.reach),
        reach=list(trial.reach),
        parent_pid=os.getpid(),
    )


def failure_text(result: TrialResult, record_folder: Path) -> str:
    """The traceback that the script reported, else the tail of its standard error."""
    return (
        result.failure.traceback
        if result.failure
        else tail(record_folder / result.folder / "stderr.txt")
    )


def _slowed(trial: Trial) -> bool:
    """Whether resident memory is made true, which costs time."""
    return trial.device.kind == "cpu" and trial.kind is TrialKind.MEMORY


def _require_room(folder: Path) -> None:
    """Raises DiskFull where the disk is full now: what the child could not write would pass for
    something it did not do.
    """
    disk = os.statvfs(folder)
    blocks = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail  # some are kept back for root
    if disk.f_blocks and blocks * disk.f_frsize < _NO_ROOM_BYTES:
        raise DiskFull(str(folder), kept=_KEPT)


def _a_rank_is_without_the_probe(folder: Path) -> bool:
    """Whether a rank wrote that it could not load the probe: it would train on unseen and uncut.

    A process that did not report in may be a rank, or a helper with an old Python that is soon
    gone: it counts when no rank has reported in for a while.
    """
    failed = list(folder.glob("probe-error-*.txt"))
    if not failed:
        return False
    pids = [path.stem.removeprefix("wire-") for path in folder.glob("wire-*.jsonl")]
    ranks = {pid for pid in pids if gather.role_of(folder, pid) == "rank"}
    if ranks & {path.stem.removeprefix("probe-error-") for path in failed}:
        return True
    return not ranks and time.time() - min(path.stat().st_mtime for path in failed) > _PATIENCE_S


def _result(trial: Trial, folder: Path, record_folder: Path, ending: Ending) -> TrialResult:
    reported = gather.of_trial(folder)
    reports = reported.reports
    # why a process could not load the probe (an older Python, say), as its bootstrap wrote it
    texts = (tail(path).strip() for path in sorted(folder.glob("probe-error-*.txt")))
    probe_error = next((text.splitlines()[-1].strip() for text in texts if text), None)
    cause = outcome.of_trial(ending, reported, tail(folder / "stderr.txt"), probe_error)
    timed = not OUTCOMES[cause.outcome].told_to_end and not _slowed(trial)
    return TrialResult(
        trial=trial,
        samples_per_step=gather.samples_per_step(reports, trial.device.ranks or 1),
        step_s=gather.step_times(reports) if timed else (),
        samples_per_s=gather.samples_per_second(reports) if timed else None,
        samples_per_cpu_s=gather.samples_per_processor_second(reports) if timed else None,
        others_share=ending.others_share,
        loading_share=gather.loading_share(reports),
        **outcome.execution_fields(
            cause, ending, reported, str(folder.resolve().relative_to(record_folder.resolve()))
        ),
    )
