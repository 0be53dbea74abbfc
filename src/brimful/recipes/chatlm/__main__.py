"""`python -m brimful.recipes.chatlm`: train; and tokenizer, prepare, answer, chat, evaluate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from brimful import __version__
from brimful.recipes.chatlm.options import Answering, DataOptions, ModelOptions
from brimful.recipes.chatlm.presets import PRESETS, preset_on
from brimful.recipes.common import Presets, run, say
from brimful.train.config import Config

presets = Presets("fast", tuple(PRESETS), preset_on)
app = App(
    name="python -m brimful.recipes.chatlm",
    version=__version__,
    help="Fine-tune a Chinese chat model on prompts and responses, and talk to it.",
    help_epilogue="On several cards: torchrun --nproc-per-node 2 -m brimful.recipes.chatlm --data FILE",
    config=presets.apply,
    default_parameter=Parameter(show_default=False),  # a preset has others
)
NO_DATA, NO_MODEL, NO_SETTINGS, AS_TRAINED = DataOptions(), ModelOptions(), Config(out=Path("out/chatlm")), Answering()


@app.default
def train(
    *,
    preset: str = presets.default,
    data: DataOptions = NO_DATA,
    model: ModelOptions = NO_MODEL,
    config: Config = NO_SETTINGS,
) -> int:
    """Train.

    Parameters
    ----------
    preset
        fast or original. Any flag overrides it.
    """
    from brimful.recipes.chatlm import recipe

    recipe.train(config, data, model, f"chatlm, preset {preset}", presets.rows)
    return 0


@app.command
def tokenizer(*, data: DataOptions = NO_DATA, out: Path = Path("out/tokenizer")) -> int:
    """Train a tokenizer on the data and end.

    Parameters
    ----------
    out
        Its folder, for --tokenizer.
    """
    from brimful.recipes.chatlm.rows import Rows
    from brimful.recipes.chatlm.tokenizer import train_tokenizer

    trained = train_tokenizer(Rows(data.data, data), data.vocab_size)
    trained.save_pretrained(out)
    say(f"{len(trained):,} tokens.")
    print(out)
    return 0


@app.command
def prepare(*, data: DataOptions = NO_DATA) -> int:
    """Make tokens of the data in the cache and end."""
    from brimful.recipes.chatlm import recipe

    recipe.prepare(data)
    return 0


@app.command
def answer(prompts: list[str], /, *, options: Answering = AS_TRAINED) -> int:
    """Answer prompts: a line for each.

    Parameters
    ----------
    prompts
        What to answer.
    """
    from brimful.recipes.chatlm import generation

    return generation.answer(prompts, options)


@app.command
def chat(*, options: Answering = AS_TRAINED) -> int:
    """Talk to a trained model in the terminal."""
    from brimful.recipes.chatlm import generation

    return generation.chat(options)


@app.command
def evaluate(
    *,
    data: DataOptions = NO_DATA,
    options: Answering = AS_TRAINED,
    batch_size: int = 64,
    bleu_tokenizer: str = "zh",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Answer all prompts of the data, and compare: loss, BLEU and chrF.

    Parameters
    ----------
    batch_size
        Prompts at once.
    bleu_tokenizer
        sacrebleu's: zh, char, 13a, intl ...
    json
        One JSON object.
    """
    from brimful.recipes.chatlm import generation

    return generation.evaluate(data, options, batch_size, bleu_tokenizer, json)


def main(argv: list[str] | None = None) -> int:
    return run(app, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
