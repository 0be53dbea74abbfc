"""The rows and tokenizers of bench/chatlm.py; and what the chat model of 0.2 billion parameters
takes of a card of 20 GB, predicted: against the plain loop; the largest batch.

No card is needed. Every text of the data fills the limit of 256 tokens: the worst that can come.
The largest batch size that `brimful tune` names is held to the true largest: the command is traced
at sizes around it as it stands (`--batch-size-from none`), and bisected.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.golden import figures
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
    """Rows that differ and whose two texts are longer than any limit of 256 tokens: many texts in
    one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            prompt, response = (_long([row[side] for row in rows], number) for side in (0, 1))
            file.write(
                json.dumps({"prompt": prompt, "response": response}, ensure_ascii=False) + "\n"
            )
    return path


def _long(texts: Sequence[str], start: int) -> str:
    long = str(start)
    for step in range(CHARACTERS):
        if len(long) >= CHARACTERS:
            break
        long += texts[(start + step) % len(texts)]
    return long


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


def recipe_flags(common: list[str]) -> list[str]:
    return [*common, "--model", "chatlm-0.2b", "--eval-share", "0", "--no-bleu", "--resume", "no"]


def at(batch_size: int, flags: list[str]) -> list[str]:
    return ["-m", "recipes.chatlm", *flags, "--batch-size", str(batch_size)]


def memory(folder: Path, common: list[str], gpu: str = GPU) -> dict[str, Any]:
    """Peaks at the same batch, in bytes, of the plain loop and of the recipe, each by a trace of
    this very batch.
    """
    plain = predicted(
        gpu, [str(HERE / "chatlm_plain.py"), *common, "--length", str(LENGTH)], folder
    )  # of 64 as well
    recipe = at(BATCH, recipe_flags(common))
    sides = {name: predicted(gpu, [*recipe, *flags], folder) for name, flags in RECIPE.items()}
    asked = {
        "gpu": gpu,
        "batch_size": BATCH,
        "tokens": LENGTH,
        "precision": "bf16",
        "headline": HEADLINE,
    }
    return asked | against(plain, sides)


def against(plain: dict[str, Any], sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    keys = ("allocated_bytes", "device_bytes")
    ratios = {
        name: {key: side["peak"][key] / plain["peak"][key] for key in keys}
        for name, side in sides.items()
    }
    return {"plain": plain, "recipe": sides, "ratio": ratios}


def largest(folder: Path, common: list[str], gpu: str = GPU) -> dict[str, Any]:
    """What tune names, and the true largest."""
    flags = recipe_flags(common)
    named = tuned(gpu, at(8, flags), folder)
    traced: dict[int, bool] = {}

    def fits(size: int) -> bool:
        answer = predicted(gpu, at(size, flags), folder)
        traced[size] = answer["verdict"] == "fits"
        harness.say(f"  batch size {size}: {answer['verdict']}")
        return traced[size]

    true = largest_that(fits, named["batch_size"], ROWS)
    return {
        "gpu": gpu,
        "tokens": LENGTH,
        **named,
        "true_largest": true,
        "share": named["batch_size"] / true,
        "traced": traced,
    }


def predicted(gpu: str, words: list[str], folder: Path) -> dict[str, Any]:
    """A trace of the command as it stands: its batch size is neither found nor changed."""
    verb = ["predict", "--gpu", gpu, "--no-what-if", "--batch-size-from", "none"]
    return figures(_answer(verb, words, folder))


def tuned(gpu: str, words: list[str], folder: Path) -> dict[str, Any]:
    plan = _answer(["tune", "--gpu", gpu, "--objective", "largest", "--no-page"], words, folder)
    return {
        name: plan[name]
        for name in ("batch_size", "verified", "trials", "out_of_memory_trials", "budget", "sizes")
    }


def _answer(flags: list[str], words: list[str], folder: Path) -> dict[str, Any]:
    """What brimful prints as JSON."""
    report = harness.brimful(flags, [sys.executable, *words], folder, TIME_LIMIT_S)
    if report["exit_code"] not in (0, DoesNotFit.exit_code):
        raise RuntimeError(f"brimful {flags[0]} ended with {report}")
    return report["answer"]


def largest_that(fits: Callable[[int], bool], near: int, most: int) -> int:
    """The largest size up to `most` that fits, the next one not: by steps that double from `near`,
    then bisection.
    """
    low, high, step = 0, most + 1, max(1, near // 32)
    at = near
    while low < at < high:
        if fits(at):
            low, at = at, at + step
        else:
            high, at = at, at - step
        if low and high <= most:
            break
        step *= 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        raise ValueError("not even a batch of 1 fits")
    return low
