"""Thirty trainings of the molecule head (10 seeds × 3 data sets) to their early stop: `make
bench-ood`.

The recipe trains all of them as one ensemble, by its preset `fast`; its authors start a process for
each, with worker processes that look features up in a dict (bench/ood_authors.py). Both have the
same features, pairs of each seed, network and loss; the features are in the cache before either
begins. Against two settings of the authors: batch 512 with 4 workers, and batch 8192 with 8. The
ensemble is timed with the authors' settings too, so that one sees what comes of training at once
and what of the settings.

The wall time counts whole processes, from their start to their result. The AUROC on the test
molecules must not be lower by more than one standard deviation over seeds, for any data set.
`--sample` processes of the authors' are run of each data set and setting, and the others counted at
their mean (0: all of them are run).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pickle
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.probe_cost import cpu_name

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
DATASETS = ("moleculeace:CHEMBL204_Ki", "moleculeace:CHEMBL237_Ki", "moleculeace:CHEMBL234_Ki")
COMMON = (
    "--domain",
    "scaffold",
    "--subsample",
    "2000",
    "--encoder",
    "morgan",
    "--shared",
    "leave-out",
)
SETTINGS = {"original": (512, 4), "aggressive": (8192, 8)}  # batch size, workers
LIMITS = {
    "cpu": {"original": 10.0, "aggressive": 5.0},
    "cuda": {"original": 30.0, "aggressive": 15.0},
}
PATIENCE, EPOCHS = 10, 50


def started(words: list[str], threads: int) -> tuple[float, str]:
    """Seconds and standard output of a process."""
    variables = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "OMP_NUM_THREADS": str(threads),
    }
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return time.perf_counter() - begun, done.stdout


def ensemble(options: argparse.Namespace, preset: str, folder: Path) -> dict[str, Any]:
    """The sweep's own wall time, and the AUROC of each data set over seeds."""
    out = folder / f"sweep-{preset}"
    words = [
        "-m",
        "recipes.ood_dpo",
        "sweep",
        "--datasets",
        *options.datasets,
        *COMMON,
        "--seeds",
        str(options.seeds),
    ]
    words += [
        "--preset",
        preset,
        "--patience-samples",
        str(PATIENCE * options.pairs),
        "--device",
        options.device,
    ]
    seconds, _ = started(
        [*words, "--out", str(out), "--cache", str(folder / "cache")], options.threads
    )
    metrics = json.loads((out / "dataset_metrics.json").read_text())
    found = {name: next(iter(of.values()))["dpo"][name]["auroc"] for name, of in metrics.items()}
    rows = [json.loads(path.read_text()) for path in (out / "results").glob("*--dpo--*.json")]
    samples = statistics.mean(row["samples"] for row in rows)
    heads = sum(row["seconds"] for row in rows)
    return {"seconds": seconds, "auroc": found, "mean_samples": samples, "heads_seconds": heads}


def write_pickles(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Path], int]:
    """What the authors' script reads, of each data set: features by SMILES, and the pairs that the
    recipe draws.
    """
    from brimful_train.config import Config
    from recipes.ood_dpo.runs import Bench, Settings
    from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions, HeadOptions, SweepOptions

    dataset = DatasetOptions(domain="scaffold", subsample=2000, shared="leave-out")
    encoder = EncoderOptions(encoder="morgan", cache=folder / "cache")
    sweep = SweepOptions(datasets=tuple(options.datasets))
    bench = Bench(
        Settings(sweep, dataset, encoder, HeadOptions(), Config(out=folder, device=options.device))
    )
    made, pairs = {}, 0
    for name in bench.datasets:
        loaded = bench.load(name, "morgan")
        smiles = {split: loaded.smiles(split) for split in loaded.features.arrays}
        features: dict[str, Any] = {}
        for split, array in loaded.features.arrays.items():
            features |= zip(smiles[split], array, strict=True)
        splits = {}
        for seed in range(options.seeds):
            rows = loaded.member(seed).rows
            pairs = max(pairs, rows.pairs)
            places = {
                "train_id": "train",
                "train_ood": "ood_val",
                "validation_id": "iid_val",
                "validation_ood": "ood_val",
            }
            splits[seed] = {
                part: [smiles[split][index] for index in getattr(rows, part)]
                for part, split in places.items()
            }
        made[name] = folder / f"{name}.pickle"
        content = {
            "features": features,
            "splits": splits,
            "test_id": smiles["iid_test"],
            "test_ood": smiles["ood_test"],
        }
        made[name].write_bytes(pickle.dumps(content))
    return made, pairs


def one_by_one(
    options: argparse.Namespace, setting: str, pickles: dict[str, Path]
) -> dict[str, Any]:
    """One process after the other."""
    batch, workers = SETTINGS[setting]
    seconds, areas, epochs = {}, {}, []
    for name, path in pickles.items():
        runs = []
        for seed in range(options.sample or options.seeds):
            words = [
                "bench/ood_authors.py",
                str(path),
                "--seed",
                str(seed),
                "--batch-size",
                str(batch),
                "--workers",
                str(workers),
            ]
            words += [
                "--epochs",
                str(EPOCHS),
                "--patience",
                str(PATIENCE),
                "--device",
                options.device,
            ]
            took, output = started(words, options.threads)
            runs.append((took, json.loads(output)))
            print(
                f"  {setting}, {name}, seed {seed}: {took:.1f} s, {runs[-1][1]}",
                file=sys.stderr,
                flush=True,
            )
        seconds[name] = [took for took, _ in runs]
        areas[name] = [one["auroc"] for _, one in runs]
        epochs += [one["epochs"] for _, one in runs]
    total = sum(statistics.mean(took) * options.seeds for took in seconds.values())
    return {
        "batch_size": batch,
        "workers": workers,
        "seconds_of_all": total,
        "seconds": seconds,
        "auroc": areas,
        "mean_epochs": statistics.mean(epochs),
        "processes_run": len(epochs),
    }


def compared(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """How many times less wall time, and whether no mean AUROC is lower by more than a standard
    deviation over seeds (the larger of both sides')."""
    areas = {}
    for name, area in ours["auroc"].items():
        of_theirs = theirs["auroc"][name]
        std = max(area["std"] or 0.0, statistics.stdev(of_theirs) if len(of_theirs) > 1 else 0.0)
        difference = area["mean"] - statistics.mean(of_theirs)
        areas[name] = {"difference": difference, "std": std, "is_as_good": difference >= -std}
    return {"ratio": theirs["seconds_of_all"] / ours["seconds"], "auroc": areas}


def passed(result: dict[str, Any]) -> dict[str, bool]:
    """Of each setting: whether its ratio is reached at an AUROC as good."""
    limits = LIMITS["cuda" if result["device"].startswith("cuda") else "cpu"]
    found = {name: one["compared"] for name, one in result["settings"].items()}
    return {
        name: one["ratio"] >= limits[name]
        and all(each["is_as_good"] for each in one["auroc"].values())
        for name, one in found.items()
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument(
        "--sample",
        type=int,
        default=0,
        help="processes of the authors' of each data set; 0: one for each seed",
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-ood-") as temporary:
        folder = Path(temporary)
        pickles, options.pairs = write_pickles(options, folder)
        ours = {}
        for preset in ("fast", *options.settings):
            ours[preset] = ensemble(options, preset, folder)
            print(
                f"  ensemble, {preset}: {ours[preset]['seconds']:.1f} s, {ours[preset]['auroc']}",
                file=sys.stderr,
                flush=True,
            )
        for setting in options.settings:
            theirs = one_by_one(options, setting, pickles)
            found[setting] = {
                "authors": theirs,
                "compared": compared(ours["fast"], theirs),
                "ensemble_of_same_settings": ours[setting],
                "compared_of_same_settings": compared(ours[setting], theirs),
            }
    result = {
        "what": "trainings of the molecule head: an ensemble by preset fast against the authors' "
        "process for each",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": options.threads,
        "device": options.device,
        "load_average": os.getloadavg(),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "versions": {name: version(name) for name in ("brimful", "torch", "scikit-learn", "rdkit")},
        "datasets": options.datasets,
        "seeds": options.seeds,
        "pairs": options.pairs,
        "ensemble": ours["fast"],
        "settings": found,
    }
    name = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    path = options.out / f"ood_sweep-{name}-{datetime.date.today():%Y-%m}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    for setting, holds in passed(result).items():
        one, same = found[setting]["compared"], found[setting]["compared_of_same_settings"]
        print(
            f"{setting}: {one['ratio']:.1f} x, {'held' if holds else 'MISSED'}; AUROC "
            f"{one['auroc']}"
        )
        print(f"  with the authors' settings: {same['ratio']:.1f} x; AUROC {same['auroc']}")
    print(f"kept in {path}")
    return 0 if all(passed(result).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
