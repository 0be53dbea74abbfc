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

import json
import pickle
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

from bench import harness

DATASETS = ("moleculeace:CHEMBL204_Ki", "moleculeace:CHEMBL237_Ki", "moleculeace:CHEMBL234_Ki")
COMMON = [
    "--domain",
    "scaffold",
    "--subsample",
    "2000",
    "--encoder",
    "morgan",
    "--shared",
    "leave-out",
]
SETTINGS = {"original": (512, 4), "aggressive": (8192, 8)}  # batch size, workers
LIMITS = {"original": 10.0, "aggressive": 5.0}  # on a CPU; nothing was measured on a card
PATIENCE, EPOCHS = 10, 50


def started(words: list[str], threads: int) -> tuple[float, str]:
    """Seconds and standard output of a process."""
    begun = time.perf_counter()
    output = harness.output_of([sys.executable, *words], OMP_NUM_THREADS=str(threads))
    return time.perf_counter() - begun, output


def ensemble(options: SimpleNamespace, preset: str, folder: Path) -> dict[str, Any]:
    """The sweep's own wall time, and the AUROC of each data set over seeds."""
    out = folder / f"sweep-{preset}"
    words = ["-m", "recipes.ood_dpo", "sweep", "--datasets", *options.datasets, *COMMON]
    flags = {
        "seeds": options.seeds,
        "preset": preset,
        "patience-samples": PATIENCE * options.pairs,
        "device": options.device,
        "out": out,
        "cache": folder / "cache",
    }
    seconds, _ = started([*words, *harness.flags(flags)], options.threads)
    metrics = json.loads((out / "dataset_metrics.json").read_text())
    areas = {name: next(iter(of.values()))["dpo"][name]["auroc"] for name, of in metrics.items()}
    rows = [json.loads(path.read_text()) for path in (out / "results").glob("*--dpo--*.json")]
    samples = statistics.mean(row["samples"] for row in rows)
    return {"seconds": seconds, "auroc": areas, "mean_samples": samples}


def write_pickles(options: SimpleNamespace, folder: Path) -> tuple[dict[str, Path], int]:
    """What the authors' script reads, of each data set: features by SMILES, and the pairs that the
    recipe draws.
    """
    from brimful_train.config import Config
    from recipes.ood_dpo.pairs import SPLIT_OF
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
            drawn = loaded.pairs(seed)
            pairs = max(pairs, drawn.pairs)
            splits[seed] = {
                part: [smiles[SPLIT_OF[part]][index] for index in rows]
                for part, rows in drawn.rows.items()
                if not part.startswith("test")
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


def one_by_one(options: SimpleNamespace, setting: str, pickles: dict[str, Path]) -> dict[str, Any]:
    """One process after the other."""
    batch, workers = SETTINGS[setting]
    seconds, areas, epochs = {}, {}, []
    for name, path in pickles.items():
        runs = []
        for seed in range(options.sample or options.seeds):
            flags = {
                "seed": seed,
                "batch-size": batch,
                "workers": workers,
                "most-epochs": EPOCHS,
                "patience": PATIENCE,
                "device": options.device,
            }
            words = ["bench/ood_authors.py", str(path), *harness.flags(flags)]
            took, output = started(words, options.threads)
            runs.append((took, json.loads(output)))
            harness.say(f"  {setting}, {name}, seed {seed}: {took:.1f} s, {runs[-1][1]}")
        seconds[name] = [took for took, _ in runs]
        areas[name] = [result["auroc"] for _, result in runs]
        epochs += [result["epochs"] for _, result in runs]
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
    figures = {name: setting["compared"] for name, setting in result["settings"].items()}
    return {
        name: of["ratio"] >= LIMITS[name]
        and all(area["is_as_good"] for area in of["auroc"].values())
        for name, of in figures.items()
    }


def main(
    *,
    datasets: Annotated[list[str] | None, f"default: {' '.join(DATASETS)}"] = None,
    seeds: int = 10,
    settings: Annotated[list[str] | None, "original, aggressive"] = None,
    sample: Annotated[int, "processes of the authors' of each data set; 0: one a seed"] = 0,
    threads: int = harness.cores(),
    device: str = "cpu",
    out: harness.Out = harness.RESULTS,
) -> int:
    common = {"datasets": datasets or list(DATASETS), "seeds": seeds, "threads": threads}
    options = SimpleNamespace(**common, sample=sample, device=device)
    chosen = harness.choose(SETTINGS, settings)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-ood-") as temporary:
        folder = Path(temporary)
        pickles, options.pairs = write_pickles(options, folder)
        ours = {preset: ensemble(options, preset, folder) for preset in ("fast", *chosen)}
        for setting in chosen:
            theirs = one_by_one(options, setting, pickles)
            figures[setting] = {
                "authors": theirs,
                "compared": compared(ours["fast"], theirs),
                "ensemble_of_same_settings": ours[setting],
                "compared_of_same_settings": compared(ours[setting], theirs),
            }
    what = "trainings of the molecule head: an ensemble by preset fast against a process for each"
    result = {
        **harness.heading(what, "brimful", "scikit-learn", "rdkit"),
        **vars(options),
        "ensemble": ours["fast"],
        "settings": figures,
    }
    for setting, holds in passed(result).items():
        fast, same = figures[setting]["compared"], figures[setting]["compared_of_same_settings"]
        words = f"{fast['ratio']:.1f} x, {'held' if holds else 'MISSED'}; AUROC {fast['auroc']}"
        print(f"{setting}: {words}")
        print(f"  with the authors' settings: {same['ratio']:.1f} x; AUROC {same['auroc']}")
    harness.keep("ood_sweep", result, out)
    return 0 if all(passed(result).values()) else 1


if __name__ == "__main__":
    sys.exit(harness.run(main))
