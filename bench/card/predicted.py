"""What brimful predicts of the trainings that a card ran: on an imaginary card, so that any machine
can do it, and do it again.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.card.bench import Bench
from bench.card.jobs import SCRIPTS, USERS_SCRIPTS, Job
from bench.card.measured import run_script
from brimful.decide.speed.predicted import efficiency_of, rates_of
from brimful.values import Gpu
from brimful_inside.simulator.roofline import Kernel, kernel_time, step_time
from brimful_inside.simulator.trace import decode

Rows = Sequence[dict[str, Any]]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["script"], *row["flags"], row["batch_size"]


def predictions(bench: Bench) -> None:
    """Of each training that was measured and not predicted yet."""
    rows = bench.rows()
    done = {key_of(row) for row in rows if row.get("predicted")}
    wanted = {key_of(row): row for row in rows if row.get("measured") and key_of(row) not in done}
    bench.each(list(wanted.values()), harness.cores(), lambda row: predict(bench, row))


def predict(bench: Bench, row: dict[str, Any]) -> dict[str, Any]:
    folder = SCRIPTS if (SCRIPTS / row["script"]).is_file() else USERS_SCRIPTS
    of = Job(row["job"], folder / row["script"], tuple(row["flags"]), ())
    report, trace = run_script(bench, of, row["batch_size"], imagine=True)
    sides: dict[str, Any] = {"predicted": report}
    if "reserved_bytes" in report:
        kernels = kernels_in(trace)
        report["step_s"] = step_seconds(bench.gpu(), kernels)
        sides["uncalibrated"] = {"step_s": step_seconds(bench.gpu(bench.scratch), kernels)}
    kept = {name: row[name] for name in ("job", "script", "flags", "batch_size")}
    return {**kept, **sides}


def kernels_in(trace: Path) -> Sequence[Kernel]:
    """Of its last step."""
    with gzip.open(trace, "rt", encoding="utf-8") as lines:
        return decode(lines).runs


def step_seconds(gpu: Gpu, kernels: Sequence[Kernel]) -> float | None:
    """The time of the step that ran these kernels, by the predicted clock; None where the card's
    rates are not known.
    """
    rates, efficiency = rates_of(gpu), efficiency_of(gpu)
    if rates is None or not kernels:
        return None
    times = [kernel_time(kernel, rates, efficiency) for kernel in kernels]
    return step_time(kernels, times, efficiency).seconds


def joined(rows: Rows, of_part: Rows) -> list[dict[str, Any]]:
    """The rows of a part; its trainings with what was predicted of them."""
    sides = {key_of(row): row for row in rows if "predicted" in row}
    return [sides.get(key_of(row), {}) | row if "script" in row else row for row in of_part]
