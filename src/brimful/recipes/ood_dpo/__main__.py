"""`python -m brimful.recipes.ood_dpo`: encode."""

from __future__ import annotations

import sys

from cyclopts import App

from brimful import __version__
from brimful.recipes.common import run
from brimful.recipes.ood_dpo.settings import DatasetOptions, EncoderOptions

app = App(
    name="python -m brimful.recipes.ood_dpo",
    version=__version__,
    help="Detect molecules out of distribution: features of a frozen encoder, and a small head trained on pairs.",
)
DATASET, ENCODER = DatasetOptions(), EncoderOptions()


@app.command
def encode(*, dataset: DatasetOptions = DATASET, encoder: EncoderOptions = ENCODER, device: str = "auto") -> None:
    """Encode the molecules into the cache and end.

    Parameters
    ----------
    device
        auto, cpu, cuda ...
    """
    from brimful.recipes.ood_dpo import features

    features.prepare(dataset, encoder, device)


if __name__ == "__main__":
    sys.exit(run(app, sys.argv[1:]))
