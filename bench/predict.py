"""Predictions against measurements: MLPs that others trained on an A100 40 GB and weighed with
nvidia-smi.

    python -m bench.predict <folder with mlp_a100_40gb.csv> [--rows 60] [--seed 0]

Each row becomes a run of the ordinary CUDA script bench/scripts/mlp.py on the imaginary card, in
this process (bench/traced.py). The measurements hold a CUDA context that depends on the driver, so
one constant is fitted: on one half of the rows, judged on the other.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import platform
import random
import statistics
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from bench import accuracy, peers
from bench.traced import traced
from brimful.decide.memory.intervals import interval_for
from brimful.decide.memory.size_model import fit_size_model
from brimful.measure.gpus import find_gpu, loaded_at_once, to_card
from brimful_inside.wire import Card

HERE = Path(__file__).parent
SCRIPT = HERE / "scripts" / "mlp.py"
CSV = "mlp_a100_40gb.csv"
MIB = 1 << 20


def read_rows(folder: Path, count: int, seed: int) -> list[dict[str, str]]:
    """A random `count` of the measured rows. Exits with a sentence where there are none."""
    path = folder / CSV
    if not path.is_file():
        sys.exit(f"There is no {path}: give the folder that holds the measured rows.")
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return random.Random(seed).sample(rows, min(count, len(rows)))


def flags_of(row: dict[str, str]) -> list[str]:
    """The script's words for a row."""
    names = ("input_size", "output_size", "depth", "architecture", "batch_size")
    return [part for name in names for part in (f"--{name.replace('_', '-')}", row[name])]


def predict_all(rows: list[dict[str, str]], card: Card) -> list[dict[str, object]]:
    """One line a row: its settings, what was measured and predicted (bytes), and how long that
    took.
    """
    lines = []
    for number, row in enumerate(rows):
        begun = time.perf_counter()
        fitted = fit_size_model({int(row["batch_size"]): traced(SCRIPT, flags_of(row), card)})
        assert fitted is not None, "of one trace there is always one"
        peak = fitted.replay_at(int(row["batch_size"])).peak
        lines.append(
            {
                **row,
                "device_peak_mib": int(row["device_peak_mib"]),
                "allocated_bytes": peak.allocated,
                "reserved_bytes": peak.reserved,
                "seconds": round(time.perf_counter() - begun, 2),
            }
        )
        left = int(row["device_peak_mib"]) - peak.reserved / MIB
        print(
            f"{number + 1}/{len(rows)}: {' '.join(row.values())} -> context {left:.0f} MiB",
            file=sys.stderr,
            flush=True,
        )
    return lines


def judge(lines: list[dict], seed: int, catalogue_context: int) -> dict[str, object]:
    """The figures: with one context fitted on a half and judged on the other, fitted on all rows,
    and the catalogue's.
    """
    pairs = [accuracy.Pair(line["device_peak_mib"] * MIB, line["reserved_bytes"]) for line in lines]
    fitted, judged = ([pairs[i] for i in half] for half in accuracy.halves(len(pairs), seed))
    context, whole = accuracy.context_bytes(fitted), accuracy.context_bytes(pairs)
    return {
        "held_out": {"context_bytes": context, **asdict(accuracy.accuracy(judged, context))},
        "all": {"context_bytes": whole, **asdict(accuracy.accuracy(pairs, whole))},
        "catalogue": {
            "context_bytes": catalogue_context,
            **asdict(accuracy.accuracy(pairs, catalogue_context)),
        },
        "coverage": held_out_coverage(fitted, judged, context),
        "seconds_per_prediction": statistics.median(line["seconds"] for line in lines),
    }


def held_out_coverage(
    fitted: list[accuracy.Pair], judged: list[accuracy.Pair], context: int
) -> float | None:
    """Share of the judged rows within the 95 % interval that the fitted rows give; None where these
    are too few for one.
    """
    try:
        evidence = accuracy.evidence_from(
            accuracy.relative_to_predicted(fitted, context), "dense", "", "", ""
        )
    except ValueError:
        return None
    interval = interval_for("dense", [evidence])
    spans = [interval.around(pair.predicted_reserved_bytes + context) for pair in judged]
    return accuracy.coverage(spans, [pair.measured_device_bytes for pair in judged])


def evidence_of(lines: list[dict], context: int, gpu_name: str, date: str) -> str:
    """The evidence file for dense networks: errors of predictions as brimful makes them, with the
    catalogue's context.
    """
    pairs = [accuracy.Pair(line["device_peak_mib"] * MIB, line["reserved_bytes"]) for line in lines]
    basis = (
        "MLPs with Adam in fp32, measured by GPUMemNet (arXiv 2602.17817); traced with torch "
        f"{version('torch')}"
    )
    errors = accuracy.relative_to_predicted(pairs, context)
    return accuracy.evidence_json(accuracy.evidence_from(errors, "dense", date, gpu_name, basis))


def print_table(result: dict) -> None:
    parts = {"held_out": "held out", "all": "all rows", "catalogue": "catalogue"}
    names = {
        "rows": "rows",
        "context_bytes": "context",
        "median_absolute": "median error",
        "p90_absolute": "90th percentile",
        "p95_absolute": "95th percentile",
        "worst_absolute": "worst",
        "share_under_by_5_percent": "under by more than 5 %",
        "slope_error": "slope error",
    }
    print(f"{'':28}" + "".join(f"{name:>12}" for name in parts.values()))
    for key, name in names.items():
        print(f"{name:28}" + "".join(f"{cell(key, result[part][key]):>12}" for part in parts))
    coverage = result["coverage"]
    print(
        f"{'coverage of 95 % intervals':28}{'too few rows' if coverage is None else format(coverage, '.2%'):>12}"
    )
    print(f"{'seconds per prediction':28}{result['seconds_per_prediction']:>12.2f}")


def cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key == "rows":
        return str(value)
    return f"{value / MIB:.0f} MiB" if key == "context_bytes" else f"{value:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help=f"the folder with {CSV}")
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpu", default="a100-40gb")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument(
        "--evidence",
        type=Path,
        help="also write what brimful's intervals rest on: src/brimful/decide/evidence/...",
    )
    args = parser.parse_args()

    gpu = loaded_at_once(
        find_gpu(args.gpu)
    )  # as the rows show: their machine had a driver that loads all kernels together
    lines = predict_all(read_rows(args.data, args.rows, args.seed), to_card(gpu))
    today = datetime.date.today()
    result = {
        "bench": "predict",
        "what": "device peak of MLPs trained with Adam in fp32, predicted on an imaginary card, "
        "against nvidia-smi",
        "measured_by": "GPUMemNet (arXiv 2602.17817), one A100 40 GB; versions of PyTorch and the "
        "driver "
        "not known",
        "gpu": gpu.key,
        "date": today.isoformat(),
        "seed": args.seed,
        "versions": {"torch": version("torch"), "python": platform.python_version()},
        **judge(lines, args.seed, round(gpu.context_bytes.value)),
        "rows": lines,
    }
    print_table(result)
    fitted = accuracy.halves(len(lines), args.seed)[0]
    result["peers"] = peers.figures(peers.mlp_answers(lines, fitted))
    ours = {**result["held_out"], "seconds_per_prediction": result["seconds_per_prediction"]}
    print("\nbeside others, each with a constant of its own, on the rows held out:")
    print("\n".join(peers.table({"brimful": ours, **result["peers"]})))
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"predict-{gpu.key}-{today:%Y-%m}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")
    if args.evidence:
        args.evidence.parent.mkdir(parents=True, exist_ok=True)
        hardware = f"one {gpu.name}"
        args.evidence.write_text(
            evidence_of(lines, round(gpu.context_bytes.value), hardware, today.isoformat()),
            encoding="utf-8",
        )
        print(f"written to {args.evidence}")


if __name__ == "__main__":
    main()
