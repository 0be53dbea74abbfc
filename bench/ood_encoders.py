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

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import psutil
import torch

from bench import harness
from bench.ood_minimol import Original, moleculeace
from brimful.measure.host import cores
from recipes.ood_dpo.encoders import encoder
from recipes.ood_dpo.features import encode
from recipes.ood_dpo.settings import EncoderOptions

LIMITS = {"minimol": 2.0, "chemnet": 1.5}
CLOSE = {"minimol": 1e-5, "chemnet": 1e-5}  # of the features
Side = Callable[[list[str]], tuple[np.ndarray, float]]  # features, and seconds


def processor_s() -> float:
    """Of this process and all that it started, those that have ended too."""
    me = psutil.Process()
    alive = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(t.user + t.system + t.children_user + t.children_system for t in alive)


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


def main(
    *,
    original: Annotated[Path | None, "a Python that has minimol (else chemnet alone)"] = None,
    molecules: int = 1_000,
    rounds: int = 5,
    encoders: Annotated[list[str] | None, "minimol, chemnet"] = None,
    out: harness.Out = harness.RESULTS,
) -> None:
    smiles, rows = moleculeace(molecules), []
    chosen = harness.choose(LIMITS, encoders)
    with tempfile.TemporaryDirectory() as folder:
        if original and "minimol" in chosen:
            package = Original(original, Path(folder))
            rows.append(row("minimol", package.encode, smiles, rounds))
            package.close()
        if "chemnet" in chosen:
            rows.append(row("chemnet", fcd_torch(), smiles, rounds))
    what = "molecules per second, from SMILES to features, by the recipe and by the packages"
    settings = {"threads": torch.get_num_threads(), "molecules": len(smiles), "rounds": rounds}
    harness.keep("ood_encoders", {**harness.heading(what), **settings, "rows": rows}, out)
    for figures in rows:
        print(
            f"{figures['encoder']}: {figures['ratio']:.2f} × the package (limit "
            f"{figures['at_least']}), {figures['processor_time_ratio']:.2f} of processor time, "
            f"features {figures['features_apart']:.1e} apart"
        )
    if any(
        figures["ratio"] < figures["at_least"]
        or figures["features_apart"] > CLOSE[figures["encoder"]]
        for figures in rows
    ):
        sys.exit("A limit is not held.")


if __name__ == "__main__":
    harness.run(main)
