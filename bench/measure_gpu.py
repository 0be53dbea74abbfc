"""Trains a fixed set of jobs on this machine's CUDA card, predicts the same jobs on the imaginary
one, and says how far off.

    python -m bench.measure_gpu [--seconds 480] [--only resnet gpt] [--out bench/results]
    python -m bench.measure_gpu --again bench/results/measured-<card>-<month>.json

Needs a CUDA card, torch for it, and src on the path. Where brimful's own needs are installed, NVML
is asked as well, and the card is calibrated first, as `brimful doctor --calibrate` does it; then
predictions are made with that, and once more without it ("uncalibrated"). Each run is a process of
its own, for a CUDA context belongs to a process. The result file, named by card and month, is
written anew after each run, so that a bench that is cut short leaves what it has. `--again`
predicts the jobs of a result file anew, on any machine, and needs no card.
"""

import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from bench import harness
from bench.gpu import figures, machine
from bench.gpu.jobs import JOBS, Job, in_order
from brimful.decide.memory.fit import context_of
from brimful.decide.speed.predicted import efficiency_of, rates_of
from brimful.errors import NoSuchDevice
from brimful.measure.gpus import context, find_gpu, to_card
from brimful.measure.gpus.calibrations import with_calibration
from brimful.values import Calibration, Estimate, Gpu
from brimful_inside.simulator.roofline import Kernel, kernel_time, step_time
from brimful_inside.simulator.trace import Malloc, decode

# Of one prediction on one core, at most: so much is kept back of the time that is given.
PREDICTING_S = 8.0
# A run that takes longer hangs; predictions may meet a busy machine.
JOB_LIMIT_S, PREDICTION_LIMIT_S = 120.0, 600.0

Result = dict[str, Any]


def child(arguments: list[str], real: bool) -> Any:
    """What `bench.gpu.child` wrote, or {"error": ...}. A predicted run sees no real card."""
    variables = {"OMP_NUM_THREADS": str(harness.cores())} if real else {"CUDA_VISIBLE_DEVICES": ""}
    result, limit = Path(arguments[1]), JOB_LIMIT_S if real else PREDICTION_LIMIT_S
    command = [sys.executable, "-m", "bench.gpu.child", *arguments]
    try:
        run = subprocess.run(
            command,
            cwd=result.parent,  # some scripts save what they trained
            env=harness.environment(**variables),
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {limit:.0f} s"}
    if not result.is_file():
        output = run.stderr.strip().splitlines() or ["no output"]
        return {"error": f"ended with {run.returncode}: {output[-1]}"}
    return json.loads(result.read_text(encoding="utf-8"))


def measure(job: Job, batch_size: int) -> dict[str, Any]:
    """One run on the real card. Device bytes are those of this process: what others hold is taken
    off.
    """
    others = machine.used_bytes_settled()
    with tempfile.TemporaryDirectory() as folder, machine.Watch() as watch:
        words = [f"{folder}/measured.json", str(job.script), *job.arguments(batch_size)]
        reported = child(["real", *words], real=True)
    return measured_of(reported, others, watch.peak_bytes)


def measured_of(
    reported: dict[str, Any], others: int | None, watched: int | None
) -> dict[str, Any]:
    """The child's words with the device peak and the step's median and spread.

    `others`: bytes in use before it started, None where unknown; then the card is taken to have
    been free.
    """
    measured = {**reported, "others_bytes": others}
    others = others or 0
    for name in ("context_bytes", "bare_context_bytes"):
        if name in reported:
            measured[name] = max(0, reported[name] - others)
    if "reserved_bytes" in reported:
        measured["device_bytes"] = reported["reserved_bytes"] + measured["context_bytes"]
    measured["watched_device_bytes"] = None if watched is None else max(0, watched - others)
    times = sorted(reported.get("step_s") or [])
    measured["step_times_s"] = reported.get("step_s") or []
    measured["step_s"] = statistics.median(times) if times else None
    measured["step_spread_s"] = [times[0], times[-1]] if times else None
    return measured


def predict(
    job: Job, batch_size: int, card: dict[str, Any], calibration: Calibration | None
) -> dict[str, dict[str, Any]]:
    """One run on the imaginary card, in a process of its own: {"predicted": ...}, and
    "uncalibrated" where there is a calibration.
    """
    plain = catalogued(card)
    gpu = with_calibration(plain, calibration) if plain and calibration else plain
    with tempfile.TemporaryDirectory() as folder:
        of_card, result = Path(folder, "card"), Path(folder, "result")
        of_card.write_text(json.dumps(described(card, gpu)), encoding="utf-8")
        words = [str(of_card), str(result), str(job.script), *job.arguments(batch_size)]
        reported = child(words, real=False)
        trace = result.with_suffix(".trace.gz")
        if "reserved_bytes" not in reported or not trace.is_file():
            return {"predicted": reported}
        with gzip.open(trace, "rt", encoding="utf-8") as lines:
            events = decode(lines)
    uses_cudnn = any("conv" in row.op for row in events.rows if isinstance(row, Malloc))

    def depends_on(card_of: Gpu | None) -> dict[str, Any]:
        outside = context_for(card_of, card, uses_cudnn)
        return {
            "context_bytes": int(outside.value),
            "context_source": str(outside.source),
            "device_bytes": reported["reserved_bytes"] + int(outside.value),
            "step_s": step_seconds(card_of, events.runs) if card_of else None,
        }

    sides = {"predicted": {**reported, **depends_on(gpu)}}
    return sides | ({"uncalibrated": depends_on(plain)} if gpu is not plain else {})


def described(card: dict[str, Any], gpu: Gpu | None = None) -> dict[str, Any]:
    """The card for `bench.gpu.child`; `gpu`: the catalogue's, or with what was measured of it."""
    gpu = gpu or catalogued(card)
    context_bytes = int(context_for(gpu, card, False).value)
    return {
        **(asdict(to_card(gpu)) if gpu else {}),
        **card,
        "context_bytes": context_bytes,
        "capacity_bytes": card["total_bytes"] - context_bytes,
    }


def step_seconds(gpu: Gpu, kernels: Sequence[Kernel]) -> float | None:
    """The time of the step that ran these kernels, by the predicted clock; None where the card's
    rates are not known.
    """
    rates, efficiency = rates_of(gpu), efficiency_of(gpu)
    if rates is None or not kernels:
        return None
    return step_time(
        kernels, [kernel_time(kernel, rates, efficiency) for kernel in kernels], efficiency
    ).seconds


def catalogued(card: dict[str, Any]) -> Gpu | None:
    """The catalogue's card of that name; None where it has none."""
    try:
        return find_gpu(card["name"])
    except NoSuchDevice:
        return None


def context_for(gpu: Gpu | None, card: dict[str, Any], uses_cudnn: bool) -> Estimate:
    """For the catalogue's card, or one that it lacks by what the driver says of it."""
    if gpu is None:
        return context(tuple(card["capability"]), card["multiprocessors"])
    return context_of(gpu, uses_cudnn)


def measure_all(result: Result, runs: Iterable[tuple[Job, int]], until: float, path: Path) -> None:
    """Append a row a run until the time is up (of time.monotonic), keeping each at once."""
    for job, batch_size in runs:
        if time.monotonic() > until:
            result["cut_short"] = True
            break
        measured = measure(job, batch_size)
        row = {"job": job.name, "script": job.script.name, "flags": list(job.flags)}
        result["rows"].append({**row, "batch_size": batch_size, "measured": measured})
        shown = measured.get("error") or (
            f"{measured['device_bytes'] / harness.MIB:.0f} MiB, "
            f"{(measured['step_s'] or 0) * 1e3:.2f} ms"
        )
        harness.say(f"measured {job.name} at {batch_size}: {shown}")
        keep(result, path)


def predict_all(result: Result, path: Path) -> None:
    """Fill in the predictions of all rows, as many at a time as there are cores, keeping the result
    after each.
    """
    by_name = {job.name: job for job in JOBS}
    kept = result.get("calibration")
    calibration = Calibration(**kept | {"capability": tuple(kept["capability"])}) if kept else None
    rows = [row for row in result["rows"] if row["job"] in by_name]
    with ThreadPoolExecutor(harness.cores()) as pool:
        each = pool.map(
            lambda row: predict(
                by_name[row["job"]], row["batch_size"], result["card"], calibration
            ),
            rows,
        )
        for row, sides in zip(rows, each, strict=True):
            row.update(sides)
            if error := sides["predicted"].get("error"):
                harness.say(f"predicted {row['job']} at {row['batch_size']}: {error}")
            keep(result, path)


def new_result(reported: dict[str, Any]) -> Result:
    driver, used = machine.driver_and_used()
    heading = harness.heading(
        "memory and step times of jobs on a real card, and the same predicted"
    )
    return {
        "bench": "measure_gpu",
        **heading,
        "card": reported["card"],
        "versions": {**heading["versions"], **reported["versions"], "driver": driver},
        "used_before_bytes": used,
        "cut_short": False,
        "figures": figures.summary([]),
        "rows": [],
    }


def calibrated() -> dict[str, Any] | None:
    """What `brimful doctor --calibrate` measures; None where brimful's own needs are missing."""
    try:
        from brimful.verbs import doctor
    except ModuleNotFoundError:
        return None
    with tempfile.TemporaryDirectory() as folder:
        return asdict(doctor.calibrate(sys.executable, folder)[0])


def path_of(result: Result, folder: Path) -> Path:
    """measured-<card>-<year-month>.json"""
    gpu = catalogued(result["card"])
    name = gpu.key if gpu else harness.slug(result["card"]["name"])
    return folder / f"measured-{name}-{result['date'][:7]}.json"


def keep(result: Result, path: Path) -> None:
    """Write the result as it is now. The file is whole at every moment."""
    result["figures"] = figures.summary(result["rows"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".new").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".new").replace(path)


def show(result: Result, path: Path) -> None:
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items() if value)
    print(f"{result['card']['name']}, {versions}, {result['date']}")
    print(
        "\n".join([*figures.table(result["rows"]), "", *figures.summary_table(result["figures"])])
    )
    if result["cut_short"]:
        print("cut short: the time was up before all jobs had run")
    if result["rows"]:
        print(f"written to {path}")


def main(
    *,
    seconds: Annotated[float, "of time, all in all"] = 480.0,
    only: Annotated[list[str] | None, "jobs by name (default: all)"] = None,
    again: Annotated[Path | None, "a result file to predict anew; needs no card"] = None,
    out: harness.Out = harness.RESULTS,
) -> None:
    begun = time.monotonic()
    if again:
        result, path = json.loads(again.read_text(encoding="utf-8")), again
        predict_all(result, path)
        return show(result, path)
    runs = in_order(tuple(harness.choose({job.name: job for job in JOBS}, only).values()))
    try:
        result = new_result(machine.describe())
    except LookupError as error:
        sys.exit(f"There is nothing to measure here: {error}.")
    path = path_of(result, out)
    result["calibration"] = calibrated()
    kept_back = PREDICTING_S * -(-len(runs) // harness.cores())
    measure_all(result, runs, begun + seconds - kept_back, path)
    predict_all(result, path)
    return show(result, path)


if __name__ == "__main__":
    harness.run(main)
