"""`python -m brimful.recipes.ood_dpo`: encode, train."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, validators

from brimful import __version__
from brimful.recipes.common import Presets, run
from brimful.recipes.ood_dpo.presets import AGGRESSIVE, FAST, ORIGINAL
from brimful.recipes.ood_dpo.settings import OUT, DatasetOptions, EncoderOptions, HeadOptions
from brimful.train.config import Config

presets = Presets(FAST, ORIGINAL, AGGRESSIVE)
app = App(
    name="python -m brimful.recipes.ood_dpo",
    version=__version__,
    help="Detect molecules out of distribution: features of a frozen encoder, and a small head trained on pairs.",
    config=presets.apply,
    default_parameter=Parameter(show_default=False),  # a preset has others
)
DATASET, ENCODER, HEAD, CONFIG = DatasetOptions(), EncoderOptions(), HeadOptions(), Config(out=Path(OUT))


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


@app.command
def train(
    *,
    preset: str = presets.default,
    seeds: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 1,
    dataset: DatasetOptions = DATASET,
    encoder: EncoderOptions = ENCODER,
    head: HeadOptions = HEAD,
    config: Config = CONFIG,
) -> None:
    """Train the head, and test it.

    Parameters
    ----------
    preset
        fast, original or aggressive. Any flag overrides it.
    seeds
        So many trainings, of --seed and those after it, each in a folder of its own.
    """
    from brimful.recipes.ood_dpo import recipe

    recipe.train(config, dataset, encoder, head, seeds, f"ood_dpo, preset {preset}", presets.rows)


if __name__ == "__main__":
    sys.exit(run(app, sys.argv[1:]))
