"""Trainings on the card: what memory they take and where segments lie, how long a step is, and the
largest batch within a budget.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import harness
from bench.card.bench import Bench
from bench.card.jobs import EDGES, Job, in_order, memory_jobs

# What a training of `memory` takes at most: so many run beside each other. Assumed; one that takes
# more runs out of memory on a small card, and its row says so.
ONE_TAKES_BYTES = 14 << 30
SEEDS = tuple(range(8))  # of networks that are drawn
IMPORTING = 3  # processes: one has the card, the others import meanwhile
BUDGET_BYTES, SMALL_BUDGET_BYTES = 8 << 30, 2 << 30  # of edges: on a card, without one
RESOLUTION = 50  # an edge is known to a part in so many
PREDICTION_LIMIT_S = 300.0


def run_script(
    bench: Bench, of: Job, size: int, imagine: bool = False, **spec: Any
) -> tuple[dict[str, Any], Path]:
    """(What `bench.card.child` reports, or {"error": ...}; the trace of an imaginary card): on the
    card of this bench, with `imagine` on an imaginary one in any case. Ends with the bench's time.
    """
    folder = Path(tempfile.mkdtemp(dir=bench.scratch))
    result, imagine = folder / "result.json", imagine or not bench.real
    spec |= {"result": str(result), "card": bench.imaginary() if imagine else None}
    (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if imagine else {"OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-m", "bench.card.child", str(folder / "spec.json")]
    try:
        run = subprocess.run(
            [*command, str(of.script), *of.arguments(size)],
            cwd=folder,  # some scripts save what they trained
            env=harness.environment(**hidden),
            capture_output=True,
            text=True,
            timeout=max(1.0, bench.left_s),
        )
    except subprocess.TimeoutExpired:
        return {"error": "the time was up"}, folder
    if not result.is_file():
        output = run.stderr.strip().splitlines() or ["no output"]
        return {"error": f"ended with {run.returncode}: {output[-1]}"}, folder
    return json.loads(result.read_text(encoding="utf-8")), Path(f"{result}.trace.gz")


def row_of(of: Job, size: int, measured: dict[str, Any]) -> dict[str, Any]:
    named = {"job": of.name, "script": of.script.name, "flags": list(of.flags)}
    return {**named, "batch_size": size, "measured": measured}


def memory(bench: Bench) -> None:
    """Side by side: peaks are exact, times are not. With each training's segments."""
    workers = min(harness.cores(), bench.card["total_bytes"] // ONE_TAKES_BYTES)
    bench.each(
        bench.few(memory_jobs(SEEDS), 4),
        workers,
        lambda run: row_of(*run, run_script(bench, *run, history=True)[0]),
    )


def times(bench: Bench) -> None:
    """One after the other: the next ones import their packages, and wait."""
    lock = str(bench.scratch / "card.lock")
    bench.each(
        bench.few(in_order(), 3),
        min(IMPORTING, harness.cores()),
        lambda run: row_of(*run, run_script(bench, *run, lock=lock)[0]),
    )


def edges(bench: Bench) -> None:
    """The size that `brimful predict` names for a budget, and the largest that runs where PyTorch
    may hold that budget less the context.
    """
    budget = BUDGET_BYTES if bench.real else SMALL_BUDGET_BYTES
    workers = min(harness.cores(), int(0.9 * bench.card["total_bytes"] // budget))
    bench.each(bench.few(list(EDGES), 1), workers, lambda of: edge_of(bench, of, budget))


def edge_of(bench: Bench, of: Job, budget: int) -> dict[str, Any]:
    limit = budget - bench.context_bytes
    command = [sys.executable, str(of.script), *of.flags, "--batch-size", "{batch_size}"]
    words = ["predict", "--gpu", bench.card["name"], "--budget", f"{budget >> 20}MiB"]
    home, left = str(bench.home), min(bench.left_s, PREDICTION_LIMIT_S)
    said = harness.brimful(words, command, bench.scratch, left, BRIMFUL_HOME=home)["answer"]
    error = said.get("error") or {}
    row = {"job": of.name, "flags": list(of.flags), "budget_bytes": budget, "limit_bytes": limit}
    row |= {"named": said.get("largest_batch_size"), "error": error.get("problem")}
    row["exact"] = said.get("exact")
    tries: dict[int, str | None] = {}

    def runs(size: int) -> bool | None:
        """None where the time is up, or where it ended for another reason."""
        report = run_script(bench, of, size, limit_bytes=limit)[0]
        tries[size] = report["error"] and report["error"][:60]
        if report["error"] is None or "OutOfMemory" in report["error"]:
            return report["error"] is None
        return None

    runs_at, ends_at = edge(runs, row["named"] or 8)
    row["share_named"] = row["named"] / runs_at if row["named"] and runs_at else None
    return {**row, "largest_that_runs": runs_at, "smallest_that_does_not": ends_at, "tries": tries}


def edge(runs: Callable[[int], bool | None], start: int) -> tuple[int | None, int | None]:
    """(The largest size that was seen to run, the smallest that was not): from a size that is
    thought to run upwards, or down to one that does, then between both. As far as it came where
    `runs` knows no answer.
    """
    low, high, size = None, None, max(1, start)
    while True:
        answer = runs(size)
        if answer is None:
            return low, high
        low, high = (size, high) if answer else (low, size)
        if low is not None and high is not None and high - low <= max(1, low // RESOLUTION):
            return low, high
        if high is None:
            size += max(1, size // 8)
        elif low is None and high == 1:
            return low, high
        else:
            size = (low + high) // 2 if low is not None else high - max(1, high // 8)
