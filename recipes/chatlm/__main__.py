"""`python -m recipes.chatlm`: train; and tokenizer, prepare, answer, chat, evaluate."""

import sys
from pathlib import Path

from cyclopts import App, Parameter

from brimful import __version__
from brimful_train.config import Config
from recipes.chatlm.settings import (
    FAST,
    FAST_ON_A_CARD,
    ORIGINAL,
    OUT,
    AnswerOptions,
    DataOptions,
    ModelOptions,
)
from recipes.common.running import Presets, run, say

presets = Presets(FAST, ORIGINAL, on_a_card=FAST_ON_A_CARD)
app = App(
    name="python -m recipes.chatlm",
    version=__version__,
    help="Fine-tune a Chinese chat model on prompts and responses, and talk to it.",
    help_epilogue="On several cards: torchrun --nproc-per-node 2 -m recipes.chatlm --data FILE",
    config=presets.apply,
    default_parameter=Parameter(show_default=False),  # a preset has others
)
DATA, MODEL, CONFIG, AS_TRAINED = (
    DataOptions(),
    ModelOptions(),
    Config(out=Path(OUT)),
    AnswerOptions(),
)


@app.default
def train(
    *,
    preset: str = presets.default,
    data: DataOptions = DATA,
    model: ModelOptions = MODEL,
    config: Config = CONFIG,
) -> None:
    """Train.

    Parameters
    ----------
    preset
        fast or original. Any flag overrides it.
    """
    from recipes.chatlm import recipe

    recipe.train(config, data, model, f"chatlm, preset {preset}", presets.rows)


@app.command
def tokenizer(*, data: DataOptions = DATA, out: Path = Path("out/tokenizer")) -> None:
    """Train a tokenizer on the data, save it in the folder --out, and end."""
    from recipes.chatlm.data import train_tokenizer
    from recipes.chatlm.rows import read_rows

    trained = train_tokenizer(read_rows(data.data, data), data.vocab_size)
    trained.save_pretrained(out)
    say(f"{len(trained):,} tokens.")
    print(out)


@app.command
def prepare(*, data: DataOptions = DATA) -> None:
    """Make tokens of the data in the cache and end."""
    from recipes.chatlm import recipe

    recipe.prepare(data)


@app.command
def answer(prompts: list[str], /, *, options: AnswerOptions = AS_TRAINED) -> None:
    """Answer prompts: a line for each."""
    from recipes.chatlm import generation

    generation.answer(prompts, options)


@app.command
def chat(*, options: AnswerOptions = AS_TRAINED) -> None:
    """Talk to a trained model in the terminal."""
    from recipes.chatlm import generation

    generation.chat(options)


@app.command
def evaluate(*, data: DataOptions = DATA, options: AnswerOptions = AS_TRAINED) -> None:
    """Answer all prompts of the data, and compare: loss, BLEU and chrF."""
    from recipes.chatlm import generation

    generation.evaluate(data, options)


if __name__ == "__main__":
    sys.exit(run(app, sys.argv[1:]))
