"""`python -m recipes.ood_dpo`: encode, train, baseline, sweep, study."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, validators

from brimful import __version__
from brimful_train.config import Config
from recipes.common.running import Presets, run
from recipes.ood_dpo.settings import (
    AGGRESSIVE,
    FAST,
    ORIGINAL,
    OUT,
    DatasetOptions,
    EncoderOptions,
    HeadOptions,
    StudyOptions,
    SweepOptions,
)

presets = Presets(FAST, ORIGINAL, AGGRESSIVE)
app = App(
    name="python -m recipes.ood_dpo",
    version=__version__,
    help="Detect molecules out of distribution: features of a frozen encoder, and a small head "
    "trained on pairs.",
    config=presets.apply,
    default_parameter=Parameter(show_default=False),  # a preset has others
)
DATASET, ENCODER, HEAD, CONFIG = (
    DatasetOptions(),
    EncoderOptions(),
    HeadOptions(),
    Config(out=Path(OUT)),
)
SWEEP, STUDY = SweepOptions(), StudyOptions()


@app.command
def encode(
    *, dataset: DatasetOptions = DATASET, encoder: EncoderOptions = ENCODER, device: str = "auto"
) -> None:
    """Encode the molecules into the cache and end.

    Parameters
    ----------
    device
        auto, cpu, cuda ...
    """
    from recipes.ood_dpo import features

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
    from recipes.ood_dpo import recipe

    recipe.train(config, dataset, encoder, head, seeds, f"ood_dpo, preset {preset}", presets.rows)


@app.command
def baseline(
    methods: list[str],
    /,
    *,
    seeds: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 3,
    dataset: DatasetOptions = DATASET,
    encoder: EncoderOptions = ENCODER,
    device: str = "auto",
    out: Path = Path(OUT) / "baselines",
) -> int:
    """Fit baselines and test them: msp, odin, energy, mahalanobis, knn, lof, mc_dropout, conformal,
    trivial, or all.

    Parameters
    ----------
    seeds
        So many of each: 0, 1, 2 ...
    device
        Of the encoder: auto, cpu, cuda ...
    out
        Folder of the tables and the page.
    """
    from recipes.ood_dpo.runs import Settings
    from recipes.ood_dpo.sweep import sweep

    options = SweepOptions(methods=tuple(methods), seeds=seeds)
    settings = Settings(options, dataset, encoder, HEAD, Config(out=out, device=device))
    return sweep(settings, sys.argv[1:])


@app.command(name="sweep")
def sweep_command(
    *,
    preset: str = presets.default,
    sweep: SweepOptions = SWEEP,
    dataset: DatasetOptions = DATASET,
    encoder: EncoderOptions = ENCODER,
    head: HeadOptions = HEAD,
    config: Config = CONFIG,
) -> int:
    """Train and test many: seeds × data sets × encoders × methods. The same command goes on where
    one was killed.

    Parameters
    ----------
    preset
        fast, original or aggressive. Any flag overrides it.
    """
    from recipes.ood_dpo.runs import Settings
    from recipes.ood_dpo.sweep import sweep as do

    return do(Settings(sweep, dataset, encoder, head, config), sys.argv[1:])


study = App(
    name="study", help="What a setting does.", default_parameter=Parameter(show_default=False)
)
app.command(study)


@study.command(name="batch-size")
def batch_size(
    *,
    preset: str = presets.default,
    study: StudyOptions = STUDY,
    dataset: DatasetOptions = DATASET,
    encoder: EncoderOptions = ENCODER,
    head: HeadOptions = HEAD,
    config: Config = CONFIG,
) -> int:
    """Train at several batch sizes, for equal samples and for equal updates, and draw what they do.

    Parameters
    ----------
    preset
        fast, original or aggressive. Any flag overrides it.
    """
    from recipes.ood_dpo.runs import Settings
    from recipes.ood_dpo.study import study_batch_size

    settings = Settings(SWEEP, dataset, encoder, head, config)
    return study_batch_size(settings, study, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run(app, sys.argv[1:]))
