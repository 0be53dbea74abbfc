"""What the chat model of 0.2 billion parameters takes of a card of 20 GB, predicted: against the
plain loop; the largest batch.

No card is needed. Every text of the data fills the limit of 256 tokens: the worst that can come.
The largest batch size that `brimful tune` names is held to the true largest: the command is traced
at sizes around it, each of which is replayed by itself (bench/chatlm_at.py), and bisected.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import harness
from bench.chatlm_data import long_rows, rows_of, tokenizer_in
from bench.golden import figures
from brimful.errors import DoesNotFit

HERE = Path(__file__).parent
GPU = "rtx3080-20gb"
VOCABULARY = 29_298
LENGTH = 256
BATCH = 64
ROWS = 512
TIME_LIMIT_S = 1200
# At the same batch of an update. With a limit of tokens, batches of long rows go through the model
# in several micro-batches.
RECIPE: dict[str, tuple[str, ...]] = {
    "loss in pieces": (),
    "loss in pieces, 16,384 tokens at once": ("--max-tokens", "16384"),
    "loss in pieces, 8,192 tokens at once": ("--max-tokens", "8192"),
}
HEADLINE = "loss in pieces, 16,384 tokens at once"


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


def memory(folder: Path, common: list[str], gpu: str = GPU) -> dict[str, Any]:
    """Peaks at the same batch, in bytes, of the plain loop and of the recipe, each by a trace of
    this very batch.
    """
    plain = predicted(
        gpu, [str(HERE / "chatlm_plain.py"), *common, "--length", str(LENGTH)], folder
    )  # of 64 as well
    recipe = [str(HERE / "chatlm_at.py"), str(BATCH), *recipe_flags(common)]
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
    named = tuned(gpu, ["-m", "recipes.chatlm", *flags, "--batch-size", "8"], folder)
    traced: dict[int, bool] = {}

    def fits(size: int) -> bool:
        answer = predicted(gpu, [str(HERE / "chatlm_at.py"), str(size), *flags], folder)
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
    """Of a command in which brimful finds no batch size: a trace of the command as it stands."""
    return figures(_answer(["predict", "--gpu", gpu, "--no-what-if"], words, folder))


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
