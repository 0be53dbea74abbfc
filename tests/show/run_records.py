"""Records of runs, for tests of what people see."""

from __future__ import annotations

from dataclasses import replace

from brimful.values import (
    Attempt,
    Closed,
    Command,
    Device,
    Diagnostic,
    Outcome,
    PhasePeak,
    PlannedSetting,
    Record,
    Run,
    RunEnded,
    RunStarted,
    Source,
)
from brimful_inside.wire import Failure
from tests.show.pieces import GIB, STARTED, opened

ARGV = ("python", "train.py", "--batch-size", "{batch_size}", "--accumulation", "{accumulation}", "{resume}")
WHY = "by the plan 20260725-172000-tune-captcha: the smallest size within 3% of the fastest one, 1,024"
FULL = Failure(
    "out_of_device_memory", "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB.",
    "Traceback (most recent call last):\n  ...\ntorch.OutOfMemoryError", "/home/u/train.py:41 in train", "train", 8211, False,
)  # fmt: skip


def settings(size: int, accumulation: int, why: str) -> tuple[PlannedSetting, ...]:
    return (
        PlannedSetting("batch_size", 64, size, why, Source.MEASURED),
        PlannedSetting("accumulation", None, accumulation, "so that 1,024 samples go into an update", Source.ASSUMED),
    )


def attempt(number: int = 1, size: int = 512, **changes: object) -> Attempt:
    peak = PhasePeak(11 * GIB, 13 * GIB, 14 * GIB, 4 * GIB)
    value = Attempt(
        number=number,
        settings=settings(size, 1024 // size, WHY),
        argv=("python", "train.py", "--batch-size", str(size), "--accumulation", str(1024 // size)),
        environment={},
        resumed=None,
        outcome=Outcome.COMPLETED,
        reports=(),
        phases={"train": peak, "eval": replace(peak, reserved_bytes=15 * GIB, device_bytes=16 * GIB, visits=30)},
        peak=replace(peak, reserved_bytes=15 * GIB, device_bytes=16 * GIB),
        steps=146_000,
        samples=146_000 * 1024,
        samples_per_s=5120.0,
        loading_share=0.02,
        started_unix_s=STARTED,
        duration_s=29_200.0,
        folder=f"attempt-{number:03d}",
        exit_code=0,
        process_tree_host_bytes=6 * GIB,
    )
    return replace(value, **changes)  # type: ignore[arg-type]


def run_record(*attempts: Attempt, ended: RunEnded | None, notes: tuple[Diagnostic, ...] = ()) -> Record:
    started = RunStarted("plan", "the newest plan of this command", "/home/u/.brimful/t", 10, ("--resume", "last"), 90.0)
    device = Device("accelerator", "cuda:0")
    closed = Closed(ended.exit_code, STARTED + 30_000) if ended else None
    entry = opened("run", device, command=Command(ARGV), budget=None, objective=None)
    return Record("/home/u/.brimful/r", entry, run=Run(started, attempts, ended), notes=notes, closed=closed)


def restarted() -> Record:
    """Out of memory in the night, in rank 1, and on with half of it."""
    first = attempt(
        outcome=Outcome.OUT_OF_DEVICE_MEMORY, failure=FULL, failed_rank=1, exit_code=1, steps=8210, duration_s=1642.0
    )  # fmt: skip
    second = attempt(2, 256, resumed=True, settings=settings(256, 4, "half of 512, which ran out of memory"))
    notes = (
        Diagnostic(
            "restart",
            "attempt 1: out of device memory in step 8,211 (train, rank 1) at batch_size 512",
            "attempt 2 starts with batch_size 256 and accumulation 4 (half of 512, which ran out of memory)",
            "",
        ),
        Diagnostic("resumes", "the command is told to go on from its own checkpoint: --resume last", "", ""),
    )
    message = "the command ended well after 8 h 6 min and 146,000 steps"
    return run_record(first, second, ended=RunEnded(Outcome.COMPLETED, 0, message), notes=notes)


def terminated() -> Record:
    message = "terminated after 27 min and 8,210 steps; the command ended by itself (exit code 0)"
    return run_record(
        attempt(outcome=Outcome.TERMINATED, environment={"MALLOC_MMAP_MAX_": "0"}),
        ended=RunEnded(Outcome.TERMINATED, 143, message),
    )


def cut_off() -> Record:
    """brimful itself was killed in the first attempt."""
    return run_record(ended=None)


def failed() -> Record:
    own = replace(FULL, kind="crashed", type="KeyError", message="'<b>lr</b>'")
    message = "the command failed by itself after 1 s and 3 steps (exit code 1): KeyError: '<b>lr</b>'"
    ended = RunEnded(Outcome.CRASHED, 5, message)
    cut = "the rest of its output could not be kept (No space left on device); it was still passed on"
    return run_record(attempt(outcome=Outcome.CRASHED, failure=own, exit_code=1, output_cut=cut), ended=ended)


ALL = {"run restarted": restarted, "run terminated": terminated, "run cut off": cut_off, "run failed": failed}
