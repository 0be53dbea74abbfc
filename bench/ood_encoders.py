"""Molecules per second of the molecule recipe's encoders against the packages that their numbers
are from, on the same CPU.

`python -m bench.ood_encoders --original .venv-minimol/bin/python` (make bench-ood-encoders). The
two sides take turns on the same molecules of MoleculeACE, from SMILES to features, each with its
own worker processes and batches; a ratio is of two neighbours in time, so that a machine that
others use too meets both alike. Medians over the rounds; and the same of processor time, workers
included, which others disturb less. With OMP_NUM_THREADS=1, as threads that wait for each other on
a machine that others use too measure its load.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from bench.ood_minimol import Original, moleculeace
from bench.probe_cost import cpu_name
from brimful.measure.host import cores
from recipes.ood_dpo.encoders import encoder
from recipes.ood_dpo.features import encode
from recipes.ood_dpo.settings import EncoderOptions

RESULTS = Path(__file__).parent / "results"
LIMITS = {"minimol": 2.0, "chemnet": 1.5}
CLOSE = {"minimol": 1e-5, "chemnet": 1e-5}  # of the features
Side = Callable[[list[str]], tuple[np.ndarray, float]]  # features, and seconds


def processor_s() -> float:
    """Of this process and all that it started, those that have ended too."""
    me = psutil.Process()
    alive = [one.cpu_times() for one in (me, *me.children(recursive=True))]
    return sum(one.user + one.system + one.children_user + one.children_system for one in alive)


def recipe(name: str) -> Side:
    made = encoder(EncoderOptions(encoder=name), "cpu")  # type: ignore[arg-type]

    def side(smiles: list[str]) -> tuple[np.ndarray, float]:
        begun = time.perf_counter()
        features, failed = encode(made, smiles, cores())
        assert not failed
        return features, time.perf_counter() - begun

    return side


def fcd_torch() -> Side:
    from fcd_torch import FCD

    if not hasattr(np, "row_stack"):  # the package was written for numpy 1
        np.row_stack = np.vstack  # type: ignore[attr-defined]
    fcd = FCD(device="cpu", n_jobs=cores())

    def side(smiles: list[str]) -> tuple[np.ndarray, float]:
        begun = time.perf_counter()
        return fcd.get_predictions(smiles), time.perf_counter() - begun

    return side


def row(name: str, package: Side, smiles: list[str], rounds: int) -> dict[str, Any]:
    sides = {"package": package, "recipe": recipe(name)}
    features = {side: call(smiles)[0] for side, call in sides.items()}  # loads, starts workers
    apart = float(np.abs(features["package"] - features["recipe"]).max())
    rates: dict[str, list[float]] = {side: [] for side in sides}
    cpu_s: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in list(sides)[:: 1 if number % 2 else -1]:
            before = processor_s()
            rates[side].append(len(smiles) / sides[side](smiles)[1])
            cpu_s[side].append(processor_s() - before)
        print(
            f"{name}: {rates['recipe'][-1]:.0f} molecules/s, the package "
            f"{rates['package'][-1]:.0f}",
            flush=True,
        )
    ratios = [ours / theirs for ours, theirs in zip(rates["recipe"], rates["package"], strict=True)]
    medians = {
        f"{side}_molecules_per_second": statistics.median(values) for side, values in rates.items()
    }
    of_cpu = [theirs / ours for ours, theirs in zip(cpu_s["recipe"], cpu_s["package"], strict=True)]
    cpu = {
        f"{side}_processor_ms_per_molecule": 1e3 * statistics.median(values) / len(smiles)
        for side, values in cpu_s.items()
    }
    medians |= cpu | {"processor_time_ratio": statistics.median(of_cpu)}
    figures = {
        "ratio": statistics.median(ratios),
        "at_least": LIMITS[name],
        "ratios": ratios,
        "features_apart": apart,
    }
    return {"encoder": name, **medians, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--original",
        type=Path,
        help="the Python of an environment that has minimol; without it chemnet alone",
    )
    parser.add_argument("--molecules", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, help="a JSON file; without it bench/results/ood_encoders-CPU-MONTH.json"
    )
    parser.add_argument("--encoders", nargs="+", choices=LIMITS, default=list(LIMITS))
    args = parser.parse_args()
    smiles, rows = moleculeace(args.molecules), []
    with tempfile.TemporaryDirectory() as folder:
        if args.original and "minimol" in args.encoders:
            original = Original(args.original, Path(folder))
            rows.append(row("minimol", original.encode, smiles, args.rounds))
            original.close()
        if "chemnet" in args.encoders:
            rows.append(row("chemnet", fcd_torch(), smiles, args.rounds))
    today = datetime.date.today()
    result = {
        "what": "molecules per second, from SMILES to features, by the recipe's encoders and by "
        "their packages, by turns",
        **{
            "cpu": cpu_name(),
            "cores": cores(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        **{
            "threads": torch.get_num_threads(),
            "date": str(today),
            "molecules": len(smiles),
            "rounds": args.rounds,
        },
        **{"load_average": os.getloadavg(), "rows": rows},
    }
    out = (
        args.out
        or RESULTS / f"ood_encoders-{'-'.join(cpu_name().lower().split())}-{today:%Y-%m}.json"
    )
    out.write_text(json.dumps(result, indent=1) + "\n")
    for one in rows:
        apart, of_cpu = (
            f"features {one['features_apart']:.1e} apart",
            f"{one['processor_time_ratio']:.2f} of processor time",
        )
        print(
            f"{one['encoder']}: {one['ratio']:.2f} × the package (limit {one['at_least']}), "
            f"{of_cpu}, {apart}"
        )
    if any(
        one["ratio"] < one["at_least"] or one["features_apart"] > CLOSE[one["encoder"]]
        for one in rows
    ):
        sys.exit("A limit is not held.")


if __name__ == "__main__":
    main()
