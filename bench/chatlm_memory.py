"""The rows and tokenizers of bench/chatlm.py; and what the chat model of 0.2 billion parameters
takes of a card of 20 GB, predicted: against the plain loop; the largest batch.

No card is needed. Every text of the data fills the limit of 256 tokens: the worst that can come.
Of the largest batch size that `brimful tune` names a trace of the command as it stands
(`--batch-size-from none`) has to fit, and one of the next size must not.
"""

import json
import sys
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench import harness
from bench.golden import figures
from brimful.decide.memory.bracket import least_step
from brimful.errors import DoesNotFit
from examples import recipe_chatlm
from recipes.chatlm.data import train_tokenizer
from recipes.chatlm.rows import read_rows
from recipes.chatlm.settings import DataOptions

HERE = Path(__file__).parent
GPU = "rtx3080-20gb"
VOCABULARY = 29_298
LENGTH = 256
BATCH = 64
ROWS = 512
TIME_LIMIT_S = 1200
# of a long text: no tokenizer of so few rows makes fewer than 256 tokens of them
CHARACTERS = 2_000
# At the same batch of an update. With a limit of tokens, batches of long rows go through the model
# in several micro-batches.
RECIPE: dict[str, tuple[str, ...]] = {
    "loss in pieces": (),
    "loss in pieces, 16,384 tokens at once": ("--max-tokens", "16384"),
    "loss in pieces, 8,192 tokens at once": ("--max-tokens", "8192"),
}
HEADLINE = "loss in pieces, 16,384 tokens at once"


def dialogues(folder: Path) -> Path:
    """The Chinese dialogues of the pinned wheel of chatterbot-corpus, as `make recipe-chatlm` reads
    them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheel = recipe_chatlm.DIALOGUES.fetch(folder / "wheel", print)
    recipe_chatlm.write_rows(wheel, folder / "dialogues.jsonl")
    return folder / "dialogues.jsonl"


def rows_of(data: Path) -> list[tuple[str, str]]:
    return list(read_rows((data,), DataOptions()))


def tokenizer_in(folder: Path, data: Path, vocabulary: int, filled: bool = False) -> Path:
    """Trained on the rows. `filled`: few rows make few tokens, and tokens that no text has make up
    the number, for a model has a row of weights for each all the same."""
    tokenizer = train_tokenizer(rows_of(data), vocabulary)
    if filled:
        tokenizer.add_tokens(
            [f"<|filler {number}|>" for number in range(vocabulary - len(tokenizer))]
        )
    tokenizer.save_pretrained(folder)
    return folder


def long_rows(rows: Sequence[tuple[str, str]], path: Path, count: int) -> Path:
    """Rows that differ and whose two texts are longer than any limit of 256 tokens: all texts in
    one, again and again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sides = ["".join(texts) for texts in zip(*rows, strict=True)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            prompt, response = (
                "".join(islice(cycle(f"{number}{text}"), CHARACTERS)) for text in sides
            )
            row = {"prompt": prompt, "response": response}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def files(folder: Path, data: Path) -> list[str]:
    """Rows that fill the limit, a tokenizer and tokens, made once; and the flags that all sides
    have in common.
    """
    rows = long_rows(rows_of(data), folder / "long.jsonl", ROWS)
    tokenizer = tokenizer_in(folder / "tokenizer", data, VOCABULARY, filled=True)
    data_flags = ["--data", str(rows), "--tokenizer", str(tokenizer)]
    data_flags += ["--cache", str(folder / "cache")]
    prepare = [sys.executable, "-m", "recipes.chatlm", "prepare", *data_flags, "--eval-share", "0"]
    harness.output_of(prepare)
    return [*data_flags, "--precision", "bf16"]


def at(batch_size: int, common: list[str], *flags: str) -> list[str]:
    fixed = ["--model", "chatlm-0.2b", "--eval-share", "0", "--no-bleu", "--resume", "no"]
    size = ["--batch-size", str(batch_size)]
    return ["-m", "recipes.chatlm", *common, *fixed, *size, *flags]


def memory(folder: Path, common: list[str]) -> dict[str, Any]:
    """Peaks at the same batch, in bytes, of the plain loop and of the recipe, each by a trace of
    this very batch.
    """
    words = [str(HERE / "chatlm_plain.py"), *common, "--length", str(LENGTH)]
    plain = predicted(words, folder)  # of 64 as well
    sides = {name: predicted(at(BATCH, common, *flags), folder) for name, flags in RECIPE.items()}
    asked = {"gpu": GPU, "batch_size": BATCH, "tokens": LENGTH, "precision": "bf16"}
    return {**asked, "headline": HEADLINE, **against(plain, sides)}


def against(plain: dict[str, Any], sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    keys = ("allocated_bytes", "device_bytes")
    ratios = {
        name: {key: side["peak"][key] / plain["peak"][key] for key in keys}
        for name, side in sides.items()
    }
    return {"plain": plain, "recipe": sides, "ratio": ratios}


def largest(folder: Path, common: list[str]) -> dict[str, Any]:
    """The largest that predict names, and whether it fits and 3 % more does not."""
    answer = _answer(["predict", "--gpu", GPU, "--no-what-if"], at(8, common), folder)
    size = answer["largest_batch_size"]
    fits, next_fits = (
        predicted(at(size + more, common), folder)["verdict"] == "fits"
        for more in (0, least_step(size))
    )
    asked = {"gpu": GPU, "tokens": LENGTH, "batch_size": size}
    asked |= {name: answer[name] for name in ("budget", "rows")}
    return {**asked, "fits": fits, "next_fits": next_fits}


def predicted(words: list[str], folder: Path) -> dict[str, Any]:
    """A trace of the command as it stands: its batch size is neither found nor changed."""
    verb = ["predict", "--gpu", GPU, "--no-what-if", "--batch-size-from", "none"]
    return figures(_answer(verb, words, folder))


def _answer(flags: list[str], words: list[str], folder: Path) -> dict[str, Any]:
    """What brimful prints as JSON."""
    report = harness.brimful(flags, [sys.executable, *words], folder, TIME_LIMIT_S)
    if report["exit_code"] not in (0, DoesNotFit.exit_code):
        raise RuntimeError(f"brimful {flags[0]} ended with {report}")
    return report["answer"]
