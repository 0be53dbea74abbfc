"""Records that the product itself makes, for tests of what people see: its verbs run in worlds of
tests/brimful/verbs/world.py.

What differs from machine to machine (folders, times, the machine, the interpreter) is replaced by
fixed values.
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from brimful import audit, predict, tune
from brimful.errors import BrimfulError
from brimful.record import list_records, read_record
from brimful.trials.session import Options
from brimful.values import (
    Answer,
    AttemptStarted,
    Check,
    CheckedJob,
    Closed,
    Estimate,
    Held,
    HostRoom,
    HostSetting,
    Judged,
    Machine,
    Outcome,
    Record,
    Source,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful.verbs.compare import Until, compare
from brimful.verbs.run import RunOptions, run
from brimful.watcher import Watcher
from brimful_inside.wire import Failure
from tests.brimful.ask.test_speed import Clocked
from tests.brimful.verbs.world import COMMAND, GIB, MIB, Learning, World, work

STARTED = 1_785_000_000.0  # 2026-07-25T17:20:00Z
ASKED = ("my-train", "--batch-size", "64")
MACHINE = Machine(
    hostname="anvil",
    system="Linux 6.1.0-18-amd64 x86_64",
    cpu_name="Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
    cores=2,
    host_total_bytes=24 * GIB,
    host_free_bytes=21 * GIB,
    cgroup_limit_bytes=16 * GIB,
    shm_bytes=64 * MIB,
    python_version="3.11.7",
    brimful_version="0.1.0",
)
MESSAGE = "mat1 and mat2 shapes cannot be multiplied (64x17920 and 17921x1024)"
TRACEBACK = f"""Traceback (most recent call last):
  File "train.py", line 98, in <module>
    main()
  File "train.py", line 77, in main
    loss = model(images)
RuntimeError: {MESSAGE}
"""
CRASH = Failure(
    "crashed", "RuntimeError", MESSAGE, TRACEBACK, "train.py:77 in main", "train", 0, False
)
TRAIN = """
import sys
print("epoch 1", flush=True)
if int(sys.argv[1]) > 20:
    raise MemoryError("no room for a batch of " + sys.argv[1])
"""


@dataclass
class Timed(Clocked):
    """Its steps run kernels, so that its speed can be predicted."""

    dataset: int | None = 4096


@dataclass
class Crashing(World):
    """Its script raises an error wherever the outcome is "crashed"."""

    failure: Failure = field(default_factory=lambda: CRASH)

    def launch(
        self, trial: Trial, folder: Path, record_folder: Path, *rest: Any, **more: Any
    ) -> TrialResult:
        result = super().launch(trial, folder, record_folder, *rest, **more)
        return (
            replace(result, failure=self.failure) if result.outcome is Outcome.CRASHED else result
        )


def made(
    verb: Callable[..., Record],
    world: World,
    argv: tuple[str, ...] = ASKED,
    lines: int = 1000,
    **more: Any,
) -> Record:
    """The record that a verb leaves in that world, also where it raises; `lines`: cut off in the
    middle of the next one.
    """
    # A driver that loads all kernels together: its context was measured on an A100, so that screens
    # show what is certain, too.
    with (
        tempfile.TemporaryDirectory() as home,
        patch.dict(os.environ, {"CUDA_MODULE_LOADING": "EAGER"}),
    ):
        try:
            work(world, verb, argv, home=Path(home), **({"budget": "90%"} | more))
        except BrimfulError as error:
            assert error.exit_code
        folder = list_records(home)[-1]
        path = folder / "record.jsonl"
        entries = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(
            b"".join(
                line if n < lines else line[:50] for n, line in enumerate(entries) if n <= lines
            )
        )
        return settled(read_record(folder), f"brimful {verb.__name__}")


def settled(record: Record, typed: str) -> Record:
    """Without what differs from machine to machine and from run to run."""
    opened = record.opened
    verb = opened.verb
    changes: dict[str, Any] = {
        "record_id": f"20260725-172000-{verb}",
        "machine": MACHINE,
        "started_unix_s": STARTED,
        "brimful_argv": (*typed.split(), "--", *(opened.command.argv if opened.command else ())),
    }
    if opened.budget is not None and opened.budget.memory == "host":
        changes["budget"] = replace(
            opened.budget,
            bytes=GIB,
            total_bytes=16 * GIB,
            free_bytes=15 * GIB,
            why="1GiB of 15.0 GiB free",
        )
    folder = f".brimful/20260725-172000-{verb}"
    value = replace(record, folder=folder, opened=replace(opened, **changes))
    if value.closed is not None:
        value = replace(value, closed=replace(value.closed, finished_unix_s=STARTED + 131))
    if value.prediction is not None:
        value = replace(value, prediction=replace(value.prediction, seconds=8.4))
    return value


# --- predict, audit, tune ---


@cache
def predict_fits() -> Record:
    return made(predict, Timed(), gpu="a100-40gb")


@cache
def predict_oom() -> Record:
    """It does not fit; mixed precision helps."""
    world = Timed(dataset=None, linear=20 * MIB, helps={"autocast": 0.6})
    return made(predict, world, ("my-train", "--batch-size", "3000"), gpu="a100-40gb")


@cache
def predict_as_given() -> Record:
    """A command without a place for a batch size, on a card of which only the memory is known."""
    return made(predict, World(), ("my-train",), gpu_memory="20GiB")


@cache
def audit_record() -> Record:
    return made(audit, World(cap=2), device="cpu")


@cache
def doctor_record() -> Record:
    """Of `doctor --host-policy`."""
    record = clean_audit_record()
    why = "13.0 GiB of memory are free, loading may take 60%"
    rows = (
        HostSetting("num_workers", 16, 16, why, Source.MEASURED, "train.py:6", 7),
        HostSetting("pin_memory", True, False, "there is no card to copy to", room=False),
        HostSetting("batch_size", 64, 64, "a batch takes 73.5 MiB at most", place="-b", room=64),
    )
    room = HostRoom(f"7 of the 16 workers asked for fit here: {why}.", rows)
    return replace(record, audit=replace(record.audit, host=room))


@cache
def clean_audit_record() -> Record:
    return made(audit, World(), device="cpu")


@cache
def tune_on_cpu() -> Record:
    return made(tune, World(), device="cpu", budget="1GiB")


@cache
def compared() -> Record:
    words = ("my-train --batch-size 16", "my-train --batch-size 64")
    return made(compare, Learning(), words, budget=None, device="cpu", until=Until(60.0))


@cache
def checked() -> Record:
    """A job that takes more than its baseline, beside one that has none, and one that fails."""
    where = "train.py:88 in forward: x = self.mlp(x)"
    jobs = (
        CheckedJob(
            "gpt",
            "python train.py --batch-size 64",
            "a100-40gb",
            3,
            (
                Judged("peak_device_bytes", 20 * GIB, 18 * GIB, "+2 %", True),
                Judged("step_s", 0.101, 0.1, "+10 %", False),
            ),
            (
                Held(2 * GIB, "activations", ("blocks.3.mlp",), where),
                Held(64 * MIB, "workspaces", tuple(f"blocks.{n}.mlp" for n in range(12)), where),
            ),
        ),
        CheckedJob(
            "vit",
            "python vit.py",
            "l4",
            0,
            (Judged("peak_device_bytes", 4 * GIB, 3 * GIB, "+2 %", None),),
            notes=("the baseline is of torch 2.8.0, and this is 2.9.1",),
        ),
        CheckedJob("old", "python old.py", "t4", 5, failed=(f"{MESSAGE}.",)),
    )
    opened = replace(predict_fits().opened, verb="check", command=None, device=None, budget=None)
    record = Record("", opened, closed=Closed(5, STARTED))
    check = Check(jobs, "brimful.toml", "brimful.lock.json", False)
    return settled(replace(record, check=check), "brimful check")


@cache
def tune_out_of_memory() -> Record:
    """The machine holds less than the budget allows."""
    return made(tune, World(device_bytes=400 * MIB), COMMAND, device="cpu", budget="1GiB")


@cache
def tune_interrupted() -> Record:
    world = World(outcome_of=lambda trial, size: Outcome.INTERRUPTED if size > 100 else None)
    return made(tune, world, device="cpu", budget="1GiB")


@cache
def tune_fits_nothing() -> Record:
    return made(tune, World(fixed=2 * GIB), device="cpu", budget="1GiB")


@cache
def script_raised() -> Record:
    return made(
        tune, Crashing(outcome_of=lambda trial, size: Outcome.CRASHED), device="cpu", budget="1GiB"
    )


@cache
def torn() -> Record:
    """Killed in the middle of a line."""
    return made(tune, World(), COMMAND, device="cpu", budget="1GiB", lines=15)


@cache
def empty() -> Record:
    """Opened and nothing else."""
    record = tune_on_cpu()
    return Record(record.folder, record.opened)


def trial_result(batch_size: int, kind: TrialKind) -> TrialResult:
    """A trial on this machine's CPU that completed."""
    one = tune_on_cpu().trials[0]
    return replace(one, trial=replace(one.trial, settings={"batch_size": batch_size}, kind=kind))


# --- run ---


@contextmanager
def training(script: str = TRAIN) -> Iterator[tuple[Path, Options]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.py"
        path.write_text(script)
        yield path, Options(home=Path(folder) / "home")


class Quiet(Watcher):
    def output(self, stream: str, data: bytes) -> None: ...


def ran(
    words: tuple[str, ...],
    script: str = TRAIN,
    settings: dict[str, int] | None = None,
    resume_with: str | None = None,
) -> Record:
    """The record of a run of a script that needs no torch."""
    with training(script) as (path, options):
        argv = (sys.executable, str(path), *words)
        options = RunOptions(home=options.home, watcher=Quiet(), resume_with=resume_with)
        record = run(argv, device="cpu", settings=settings, options=options)
        folder = str(path.parent.resolve())
    attempts = tuple(
        replace(
            one,
            duration_s=12.0,
            started_unix_s=STARTED,
            process_tree_host_bytes=300 * MIB,
            reports=(),
            course=(),
        )
        for one in record.run.attempts
    )
    record = replace(record, run=replace(record.run, attempts=attempts))
    swaps = {sys.executable: "python", folder + "/": "", folder: "/home/u"}

    def plain(name: str, text: str) -> str:
        for old, new in swaps.items():
            text = text.replace(old, new)
        return re.sub(r"after [\d.]+ (ms|s)\b", "after 12 s", text)

    return settled(mapped(record, plain), "brimful run")


@cache
def run_restarted() -> Record:
    return ran(
        ("{batch_size}", "{resume}"), settings={"batch_size": 64}, resume_with="--resume last"
    )


@cache
def run_failed() -> Record:
    return ran((), "d = {}\nd['<b>lr</b>']\n")


@cache
def run_cut_off() -> Record:
    """brimful itself was killed in the second attempt."""
    record = run_restarted()
    first, second, *_ = record.run.attempts
    going = AttemptStarted(
        number=2,
        settings=second.settings,
        argv=second.argv,
        resumed=True,
        folder="attempt-002",
        started_unix_s=STARTED,
        pid=1,
    )
    run = replace(record.run, attempts=(first,), ended=None, going=going, going_steps=17)
    return replace(record, run=run, closed=None)


@cache
def predict_grid() -> Record:
    """A table of two settings with every kind of cell."""
    one = predict_fits()
    peak, budget = one.prediction.peak, one.prediction.budget.bytes
    cells = []
    for size in (1, 2, 4, 8):
        for length in (512, 1024, 2048, 4096):
            settings, device = (
                {"batch_size": size, "max_length": length},
                budget * size * length // 8_600,
            )
            verdict = (
                "fits" if device < 0.9 * budget else "tight" if device < budget else "does_not_fit"
            )
            traced, best = size in (1, 2, 8), settings == {"batch_size": 4, "max_length": 1024}
            rate, own = (
                Estimate(326_000.0 / length, Source.PREDICTED),
                Estimate(device, peak.source),
            )
            tokens = replace(rate, value=length * rate.value)
            cell = Answer(settings, verdict, own, traced=traced or best, best=best)
            cells.append(replace(cell, samples_per_s=rate, tokens_per_s=tokens))
    problem = "the script raised an error"
    cells[-1] = replace(cells[-1], verdict=None, peak_bytes=None, problem=problem)
    rows = {"rows": tuple(cells), "rows_of": "settings"}
    return replace(one, prediction=replace(one.prediction, **rows))


# --- hostile strings ---

HOSTILE = "<script>alert('x')</script>\"'&"
#: Strings of brimful's own, by which it decides what to show.
_OURS = {"kind", "memory", "method", "verdict", "during", "ended", "device", "source"}


def mapped(value: Any, change: Callable[[str, str], str], name: str = "") -> Any:
    """The same value with every string changed, by the name of its field; keys of dictionaries
    too.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{
                f.name: mapped(getattr(value, f.name), change, f.name)
                for f in fields(value)
                if f.init
            },
        )
    if isinstance(value, dict):
        return {mapped(key, change, name): mapped(one, change, name) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(mapped(one, change, name) for one in value)
    return change(name, value) if isinstance(value, str) and not isinstance(value, Enum) else value


@cache
def hostile() -> Record:
    """Every string from outside tries to break out of the page: an audit, a prediction, a plan and
    failed trials in one.
    """
    parts = replace(
        tune_out_of_memory(), audit=audit_record().audit, prediction=predict_oom().prediction
    )
    parts = replace(parts, trials=(*script_raised().trials, *parts.trials))
    return mapped(parts, lambda name, text: text if name in _OURS else HOSTILE)


@cache
def hostile_run() -> Record:
    return mapped(run_failed(), lambda name, text: text if name in _OURS else HOSTILE)


ALL: dict[str, Callable[[], Record]] = {
    "predict-fits": predict_fits,
    "predict-out-of-memory": predict_oom,
    "predict-as-given": predict_as_given,
    "predict-grid": predict_grid,
    "audit": audit_record,
    "audit-clean": clean_audit_record,
    "doctor-host-policy": doctor_record,
    "tune-cpu": tune_on_cpu,
    "tune-out-of-memory": tune_out_of_memory,
    "tune-interrupted": tune_interrupted,
    "tune-fits-nothing": tune_fits_nothing,
    "compare": compared,
    "check": checked,
    "script-raised": script_raised,
    "torn": torn,
    "empty": empty,
    "run-restarted": run_restarted,
    "run-failed": run_failed,
    "run-cut-off": run_cut_off,
    "hostile": hostile,
    "hostile-run": hostile_run,
}
