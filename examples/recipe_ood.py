"""`make recipe-ood`: the molecule recipe on real data, on this machine, from the download to pages
to look at.

Reads the molecules of MoleculeACE out of its pinned wheel (nothing of it is installed), encodes
them once, trains three seeds on three splits of them (assay, scaffold and size) in ensembles, fits
every baseline, tests what was trained on each split on the others, and studies the batch size. Some
minutes on 2 cores.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from examples.steps import run, step

HERE = Path(__file__).parent
RECIPE = (sys.executable, "-m", "recipes.ood_dpo")
LEARNED = 0.55  # AUROC of the best head on its own split, averaged over seeds; guessing gives 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "ood" / "out")
    parser.add_argument("--dataset", default="moleculeace:all")
    parser.add_argument(
        "--subsample", type=int, default=400, help="molecules of each split at most"
    )
    parser.add_argument("--encoder", default="chemnet")
    parser.add_argument("--epochs", type=int, default=30)
    args = parser.parse_args()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    data = ("--dataset", args.dataset, "--subsample", args.subsample, "--shared", "leave-out")
    common = (*data, "--encoder", args.encoder, "--cache", out / "cache", "--device", "cpu")
    learning = ("--epochs", args.epochs, "--batch-size", 128)

    step(
        "Download, and encode the molecules of one split (a wheel, by its hash; nothing is "
        "installed)"
    )
    run(*RECIPE, "encode", *common, "--domain", "scaffold")

    step("Train 3 seeds on 3 splits, fit all baselines, test each on the others")
    domains = ("--domains", "assay", "scaffold", "size")
    sweep = (
        "sweep",
        *common,
        *domains,
        "--methods",
        "all",
        "--seeds",
        3,
        "--cross",
        *learning,
        "--out",
        out / "sweep",
    )
    run(*RECIPE, *sweep)

    step("Go on with the same sweep: nothing is left of it")
    run(*RECIPE, *sweep)

    step("Study the batch size")
    study = (
        "--domain",
        "scaffold",
        "--sizes",
        64,
        256,
        512,
        2048,
        8192,
        "--samples",
        6000,
        "--updates",
        40,
    )
    run(*RECIPE, "study", "batch-size", *common, *study, "--out", out / "study")

    step("Figures")
    show(json.loads((out / "sweep" / "dataset_metrics.json").read_text()))
    for page in (out / "sweep" / "page.html", out / "study" / "batch_size.html"):
        print(f"The page: {os.path.relpath(page)}")


def show(metrics: dict) -> None:
    """Ends with an error where no head has learned anything."""
    best = 0.0
    for dataset, encoders in metrics.items():
        for encoder, methods in encoders.items():
            areas = {method: tests[dataset]["auroc"]["mean"] for method, tests in methods.items()}
            best = max(best, areas["dpo"])
            print(
                f"{dataset}, {encoder}: AUROC "
                + ", ".join(f"{method} {area:.3f}" for method, area in areas.items())
            )
    if best < LEARNED:
        sys.exit(f"The best head has an AUROC of {best:.3f}: nothing was learned.")


if __name__ == "__main__":
    main()
