"""Whole epochs of uneven batches on the imaginary card, at the batch size that `predict` names:
`python -m bench.epochs`.

Each program is predicted as a user would, then run for a whole epoch, several seeds, on a card
with as much memory as the pessimistic end of its CUDA context leaves: none may run out of memory.
How much was left is seen at 5 and at 25 % more samples: what is named is to fit over many epochs,
with the largest of thousands of batches, at the upper end of the interval of the prediction.
"""

from __future__ import annotations

import json
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from bench import harness
from bench.epochs.programs import PROGRAMS, Job
from brimful import command
from brimful.measure.gpus import custom_gpu
from brimful.measure.trial import run_trial
from brimful.values import Device, Outcome, Trial, TrialKind
from brimful_inside.wire import Ends

SEEDS = 3
MORE = {"at_named": 1.0, "at_5_percent_more": 1.05, "at_25_percent_more": 1.25}
EVERY_STEP = 1_000_000


def whole_epoch(job: Job, size: int, seed: int) -> dict[str, Any]:
    """How one epoch ended, after how many steps, and the most that was reserved."""
    gpu = custom_gpu(job.memory)
    context = gpu.context_bytes
    room = int(gpu.total_bytes.value - (context.high or context.value))
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(
            command.parse(job.command(seed=str(seed))),
            {"batch_size": size},
            Device("imaginary", job.memory, gpu, cards=job.cards),
            TrialKind.TRACE,
            ends=Ends(steps=EVERY_STEP),
            time_limit_s=3600,
            capacity_bytes=room,
            as_drawn=True,
        )
        result = run_trial(trial, Path(folder), Path(folder), lambda progress: None)
    return {
        "seed": seed,
        "outcome": result.outcome.value,
        "steps": max((report.steps for report in result.reports), default=0),
        "reserved_bytes": result.peak.reserved_bytes if result.peak else None,
    }


def row_of(name: str, job: Job, seeds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        asked = ["predict", "--gpu-memory", job.memory]
        report = harness.brimful(asked, job.command(batch_size=str(job.batch_size)), folder)
    answer = report["answer"]
    row = {"program": name, "memory": job.memory, "seconds": round(report["seconds"], 1)}
    row["trials"] = report["trials"]
    named = answer.get("largest_batch_size")
    if named is None:
        return {**row, "error": answer.get("error")}
    row["named"], row["limited_by"] = named, answer["limited_by"]
    for key, more in MORE.items():
        size = max(named + (more > 1), round(more * named))
        row[key] = [whole_epoch(job, size, seed) for seed in range(seeds)]
        harness.say(name, key, size, *(run["outcome"] for run in row[key]))
    return row


def main(
    *,
    only: Annotated[list[str] | None, "names of programs"] = None,
    seeds: Annotated[int, "epochs of each program at each size"] = SEEDS,
    out: harness.Out = harness.RESULTS,
) -> None:
    rows = []
    for name, job in harness.choose(PROGRAMS, only).items():
        missing = [module for module in job.needs if not find_spec(module)]
        if missing:
            harness.say(name, "left out without", *missing)
        else:
            rows.append(row_of(name, job, seeds))
            print(json.dumps(rows[-1]), flush=True)
    failed = {
        key: sum(
            run["outcome"] == Outcome.OUT_OF_DEVICE_MEMORY
            for row in rows
            for run in row.get(key, ())
        )
        for key in MORE
    }
    runs = sum(len(row.get("at_named", ())) for row in rows)
    for key, count in failed.items():
        print(f"out of memory {key.replace('_', ' ')}: {count} of {runs}")
    if only is None:
        what = harness.heading("whole epochs of uneven batches on the imaginary card", "brimful")
        harness.keep("epochs", {**what, "out_of_memory": failed, "runs": runs, "rows": rows}, out)


if __name__ == "__main__":
    harness.run(main)
