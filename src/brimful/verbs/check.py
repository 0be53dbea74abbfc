"""`check`: memory as a test. Each job of `brimful.toml` is predicted and set beside its baseline,
which `--update` writes."""

import shlex
import time
import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from brimful import codec, files, masking
from brimful import command as commands
from brimful.decide.check import baseline_of, grows, judged, limits_of, require_known, to_keep
from brimful.decide.run.settings import BATCH_SIZE
from brimful.errors import (
    BrimfulError,
    DoesNotFit,
    Interrupted,
    Terminated,
    UntilStopped,
    UsageError,
)
from brimful.trials import devices
from brimful.trials.results import require_whole
from brimful.trials.session import Options, opened
from brimful.units import parse_batch_size
from brimful.values import NOT_LOOKED_AT, Baseline, Check, CheckedJob, Job, Record
from brimful.verbs.audit import audit
from brimful.verbs.predict import predict

FILE, LOCK, PROJECT = "brimful.toml", "brimful.lock.json", "pyproject.toml"
_KEYS = [key.name for key in fields(Job)]
_EXAMPLE = (
    "for instance:\n[jobs.train]\n"
    'command = "python train.py --batch-size 64"\ngpu = "a100-40gb"\npeak_device = "+2 %"'
)


def check(
    names: Sequence[str] = (),
    *,
    update: bool = False,
    snapshot: Path | None = None,
    options: Options | None = None,
) -> Record:
    """Predicts the jobs of the file that is here, or those with these names. Returns the record,
    whose `check` is the answer; its `closed.exit_code` is 3 where a job passes a limit, and that of
    the error where one could not be predicted. `update`: write what is predicted as the baseline.

    Raises UsageError where the file is not there or cannot be meant, or a job has no baseline,
    NoSuchDevice for an unknown card."""
    started_unix_s, options = time.time(), options or Options()
    source, jobs = _read_jobs()
    require_known(names, list(jobs), source, "a job")
    baselines = _read_lock()
    chosen = {name: jobs[name] for name in names or jobs}
    for name, job in chosen.items():
        _require_one_memory(job, f"{source}, job {name}", options.home)
        _require_baseline(name, job, source, update or name in baselines)
    if snapshot is not None:
        try:
            snapshot.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the folder {snapshot} cannot be made: {error.strerror}") from error
    checked: list[CheckedJob] = []
    ended = 0
    with UntilStopped() as work:
        for name, job in chosen.items():
            options.watcher.message(f"job {name}")
            file = snapshot and snapshot / f"{name.replace('/', '-')}.pickle"
            result, now = _checked(name, job, baselines.get(name), options, update, file)
            checked.append(result)
            if update and now is not None:
                baselines[name] = to_keep(now)
    if work.stop is not None:
        if not checked:
            raise work.stop
        ended = getattr(work.stop, "exit_code", Interrupted.exit_code)
        why = (f"interrupted: {NOT_LOOKED_AT}",)
        left = [name for name in chosen if name not in {job.name for job in checked}]
        checked += [replace(_job(name, jobs[name]), exit_code=ended, failed=why) for name in left]
    if update:
        _write_lock({name: baselines[name] for name in jobs if name in baselines})
    with opened("check", None, None, options, started_unix_s=started_unix_s) as session:
        # of a job that could not be predicted nothing is known, so its code comes first
        codes = {job.exit_code for job in checked}
        session.exit_code = ended or min(codes - {0, DoesNotFit.exit_code} or codes - {0} or codes)
        session.keep(Check(tuple(checked), source, LOCK, update))
    return session.record()


def _require_baseline(name: str, job: Job, source: str, is_there: bool) -> None:
    limits = limits_of(job, f"{source}, job {name}")
    if not is_there and any(map(grows, limits.values())):
        raise UsageError(
            f"job {name} has no baseline in {LOCK}",
            "without one nobody can say what grew",
            f"write it, and commit it:\nbrimful check --update {name}",
        )


def _write_lock(baselines: dict[str, Baseline]) -> None:
    try:
        files.replace(Path(LOCK), codec.encode_lock(baselines).encode(errors="backslashreplace"))
    except OSError as error:
        raise UsageError(f"{LOCK} could not be written: {error.strerror}") from error


def _require_one_memory(job: Job, place: str, home: Path | None) -> None:
    """Raises UsageError where a job is for several cards or batch sizes, NoSuchDevice."""
    if len(devices.cards(devices.CardRequest(job.gpu, job.gpu_memory), home)) > 1:
        raise UsageError(
            f"{place} names several cards",
            "a job has one baseline, so it is for one kind of card",
            "make a job of each",
        )
    left_open = commands.placeholders(commands.parse(_argv(job)))
    if _batch_size(job) is None and BATCH_SIZE in left_open:
        raise UsageError(
            f"{place} leaves its batch size open",
            "its memory would be that of the largest one that fits, whatever the script does",
            "give it: set = { batch_size = 64 }",
        )


def _read_jobs() -> tuple[str, dict[str, Job]]:
    """The file's name, and its jobs by name."""
    name = FILE if Path(FILE).is_file() else PROJECT
    try:
        table = tomllib.loads(files.read(name, follows_links=True).decode())
        table = table if name == FILE else table["tool"]["brimful"]
        require_known(table, ["jobs"], name, "a table")
        jobs = table.get("jobs", {})
        for job in jobs:
            require_known(jobs[job], _KEYS, f"{name}, job {job}", "a key")
        read = codec.decode(codec.encode(jobs), dict[str, Job])
        if not all(map(_argv, read.values())) or not read:
            raise ValueError("it has no jobs, or one without a command")
        return name, read
    except (FileNotFoundError, KeyError):
        raise UsageError(
            f"there is neither {FILE} here nor [tool.brimful] in {PROJECT}",
            "brimful check takes its jobs from one of them",
            _EXAMPLE,
        ) from None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{name} cannot be read: {error}", suggestion=_EXAMPLE) from error


def _read_lock() -> dict[str, Baseline]:
    try:
        return codec.decode_lock(files.read(LOCK, follows_links=True).decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{LOCK} cannot be read: {error}",
            "it is damaged, or a newer brimful wrote it",
            "restore it from git, or write it anew: brimful check --update",
        ) from error


def _argv(job: Job) -> list[str]:
    return shlex.split(job.command) if isinstance(job.command, str) else job.command


def _batch_size(job: Job) -> int | None:
    """That of the command, or of `set`; None where neither has one."""
    value = job.set.get(BATCH_SIZE, commands.parse(_argv(job)).given.get(BATCH_SIZE))
    return None if value is None else parse_batch_size(str(value))


def _job(name: str, job: Job) -> CheckedJob:
    return CheckedJob(name, shlex.join(masking.words(_argv(job))), job.gpu or job.gpu_memory or "")


def _checked(
    name: str,
    job: Job,
    before: Baseline | None,
    options: Options,
    renews: bool,
    snapshot: Path | None,
) -> tuple[CheckedJob, Baseline | None]:
    """What became of a job, and what is predicted; None where nothing could be. Raises what ends
    the whole check."""
    argv, card = _argv(job), {"gpu": job.gpu, "gpu_memory": job.gpu_memory, "settings": job.set}
    # no larger batch size than the job's is searched for
    options = replace(options, budget=job.budget, max_batch_size=_batch_size(job))
    result = _job(name, job)
    try:
        record = predict(argv, options=options, what_if=False, snapshot=snapshot, **card)
        prediction = require_whole(record)
        audited = audit(argv, options=options, **card).audit if job.no_findings else None
        found = audited.findings if audited is not None else ()
    except BrimfulError as error:
        if isinstance(error, Interrupted | Terminated):
            raise
        said = "; ".join(sentence.rstrip(".") for sentence in error.sentences())
        options.watcher.message(f"{getattr(error, 'traceback', '')}\n{said}".lstrip())
        return replace(result, exit_code=error.exit_code, failed=(said,)), None
    device, machine = record.opened.device, record.opened.machine
    assert device is not None and machine is not None
    for file in prediction.written:
        options.watcher.message(f"Written: {file.path}: {file.what}; {file.how}")
    torch = next(report.torch_version for trial in record.trials for report in trial.reports)
    result = replace(result, gpu=device.label.removesuffix(" (imaginary)"), record=record.folder)
    now = baseline_of(prediction, result.gpu, torch, machine.brimful_version)
    return judged(job, prediction, found, before, now, result, renews), now
