"""The chat recipe against the loop its model's authors wrote and against Transformers' Trainer:
`make bench-chatlm`.

    speed     tokens per second of the tiny model on this CPU: the recipe over a loop with fixed
              padding and whole logits, and over Seq2SeqTrainer (as it is, and with its own batches
              by length), and the losses of all after the same tokens
    memory    of the model of 0.2 billion parameters on a card of 20 GB, predicted, over the plain
              loop's at the same batch
    largest   whether the batch size that `brimful tune` names for it fits, and the next one not

A token is one of the data: padding counts on no side. For each seed all sides train one after the
other, each in a process of its own. `--parts` takes some of these; what an earlier run of the month
said of the others stays in the result.
"""

import datetime
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from bench import harness
from bench.chatlm_memory import dialogues, files, largest, memory, tokenizer_in

SEEDS = (1, 2, 3)
# epochs whose times do not count: the recipe begins with the longest rows, and caches are cold
WARM_UP = 2
SIDES = ("recipe", "plain", "trainer", "trainer-by-length")
PARTS = ("speed", "memory", "largest")
VOCABULARY = 2000  # of the tiny model
LIMITS = {"plain": 2.0, "trainer": 1.1, "memory": 0.6}  # memory at most, the others at least
VERSIONS = ("brimful", "transformers", "tokenizers", "accelerate")
# Student's t: 95 % of differences of two means of so many seeds each are within so many standard
# errors, if there is none.
TIMES_ERROR = {2: 4.303, 3: 2.776, 4: 2.447, 5: 2.306}


def race_words(settings: dict[str, Any], data: Path, folder: Path) -> list[str]:
    """Of the recipe's own command line, for all sides."""
    tokenizer = tokenizer_in(folder / "tokenizer", data, VOCABULARY)
    fixed = ["--eval-share", "0.1", "--model", "tiny", "--device", "cpu", "--no-bleu"]
    values = {"data": data, "tokenizer": tokenizer, "cache": folder / "cache", **settings}
    flags = [(f"--{name.replace('_', '-')}", str(value)) for name, value in values.items()]
    return [*fixed, *(word for flag in flags for word in flag)]


def speed(seeds: list[int], words: list[str]) -> dict[str, Any]:
    """Every side against the recipe."""
    races: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for seed in seeds:
        for side in SIDES:
            races[side].append(harness.apart("bench.chatlm_race", "race", side, seed, words))
            figures = summary(races["recipe"][-1:], races[side][-1:])
            harness.say(f"  seed {seed}, {sentence(side, figures)}")
    return {
        "against": {side: summary(races["recipe"], races[side]) for side in SIDES[1:]},
        "races": races,
    }


def summary(recipe: list[dict[str, Any]], other: list[dict[str, Any]]) -> dict[str, Any]:
    """Races of the same seeds: the ratio of tokens per second over all epochs, and the losses after
    the same tokens.
    """
    each, of_processor = ratios(recipe, other, "seconds"), ratios(recipe, other, "cpu_seconds")
    return {
        "tokens_per_s_ratio": harness.spread([ratio for of_seed in each for ratio in of_seed]),
        "cpu_time_ratio": harness.spread([ratio for of_seed in of_processor for ratio in of_seed]),
        "ratio_of_each_seed": [statistics.median(of_seed) for of_seed in each],
        "tokens_per_s": {
            name: statistics.median(
                race["tokens_per_epoch"] / second
                for race in races
                for second in race["seconds"][WARM_UP:]
            )
            for name, races in (("recipe", recipe), ("other", other))
        },
        "loss": {
            rows: compared(*([race["loss"][rows] for race in races] for races in (recipe, other)))
            for rows in ("train", "held_out")
        },
    }


def ratios(
    recipe: list[dict[str, Any]], other: list[dict[str, Any]], clock: str
) -> list[list[float]]:
    """Of each seed and epoch: the other's time over the recipe's."""
    pairs = [
        (ours[clock][WARM_UP:], theirs[clock][WARM_UP:])
        for ours, theirs in zip(recipe, other, strict=True)
    ]
    return [[theirs / ours for ours, theirs in zip(*both, strict=True)] for both in pairs]


def compared(recipe: list[list[float]], other: list[list[float]]) -> dict[str, Any]:
    """Losses of each seed (before the first epoch, and after each), and what the difference of
    their means is at the end beside `noise`: the most that chance makes of it (95 %). None with one
    seed, whose noise nobody knows."""
    ends = [[curve[-1] for curve in curves] for curves in (recipe, other)]
    difference = statistics.mean(ends[0]) - statistics.mean(ends[1])
    noise = None
    if len(recipe) in TIMES_ERROR:
        errors = [statistics.variance(values) / len(values) for values in ends]
        noise = TIMES_ERROR[len(recipe)] * math.sqrt(sum(errors))
    return {
        "recipe": [statistics.mean(values) for values in zip(*recipe, strict=True)],
        "other": [statistics.mean(values) for values in zip(*other, strict=True)],
        "end_of_each_seed": {"recipe": ends[0], "other": ends[1]},
        "difference": difference,
        "noise": noise,
        "is_worse": noise is not None and difference > noise,
        "is_within_noise": noise is None or abs(difference) <= noise,
    }


def passed(parts: dict[str, Any]) -> dict[str, bool]:
    """Of each part that was run: whether its limit holds."""
    held = {}
    for name in ("plain", "trainer") if "speed" in parts else ():
        side = parts["speed"]["against"][name]
        is_fast = side["tokens_per_s_ratio"]["median"] >= LIMITS[name]
        held[name] = is_fast and not side["loss"]["train"]["is_worse"]
    if "memory" in parts:
        ratio = parts["memory"]["ratio"][parts["memory"]["headline"]]
        held["memory"] = ratio["device_bytes"] <= LIMITS["memory"]
    if "largest" in parts:
        part = parts["largest"]
        held["largest"] = part["fits"] and not part["next_fits"]
    return held


def sentence(side: str, figures: dict[str, Any]) -> str:
    ratio, loss, rates = (
        figures["tokens_per_s_ratio"],
        figures["loss"]["train"],
        figures["tokens_per_s"],
    )
    cpu = figures["cpu_time_ratio"]["median"]
    noise = "" if loss["noise"] is None else f", chance makes up to {loss['noise']:.3f}"
    return (
        f"against {side}: {ratio['median']:.2f} x ({ratio['p10']:.2f} to {ratio['p90']:.2f}; of "
        f"processor time {cpu:.2f}), "
        f"{rates['recipe']:,.0f} against {rates['other']:,.0f} tokens/s; "
        f"loss at the end {loss['recipe'][-1]:.3f} against {loss['other'][-1]:.3f}{noise}"
    )


def report(parts: dict[str, Any]) -> None:
    for side, figures in parts.get("speed", {}).get("against", {}).items():
        print(sentence(side, figures))
    for name, ratio in parts.get("memory", {}).get("ratio", {}).items():
        print(
            f"memory, {name}: {ratio['device_bytes']:.2f} of the plain loop's (allocated: "
            f"{ratio['allocated_bytes']:.2f})"
        )
    if "largest" in parts:
        names = ("batch_size", "fits", "next_fits")
        print("largest batch:", {name: parts["largest"][name] for name in names})
    for name, holds in passed(parts).items():
        print(f"  {name}: {LIMITS.get(name, '')} asked, {'held' if holds else 'MISSED'}")


def keep(parts: dict[str, Any], folder: Path) -> None:
    """Beside what an earlier run of the month found of other parts."""
    today = datetime.date.today()
    races = parts.get("speed", {}).pop("races", None)
    path = folder / f"chatlm-{harness.slug(harness.cpu_name())}-{today:%Y-%m}.json"
    before = json.loads(path.read_text())["parts"] if path.exists() else {}
    dated = {name: {**part, "date": today.isoformat()} for name, part in parts.items()}
    what = "the chat recipe against a plain loop and Seq2SeqTrainer: speed, loss, memory, batch"
    result = {**harness.heading(what, *VERSIONS), "limits": LIMITS, "parts": before | dated}
    harness.keep("chatlm", result, folder, rows=races)


def main(
    *,
    parts: Annotated[list[Literal["speed", "memory", "largest"]] | None, "default: all"] = None,
    data: Annotated[Path | None, "rows of two texts (else the dialogues of a wheel)"] = None,
    seeds: Annotated[list[int] | None, f"default: {SEEDS}"] = None,
    epochs: int = 8,
    batch_size: int = 16,
    max_tokens: Annotated[int, "of the recipe: the preset's"] = 1024,
    precision: Literal["fp32", "bf16"] = "fp32",
    out: harness.Out = harness.RESULTS,
) -> int:
    if epochs < WARM_UP + 2:
        sys.exit(f"--epochs {epochs}: {WARM_UP} warm up, so {WARM_UP + 2} at least")
    settings = {"precision": precision, "epochs": epochs}
    settings |= {"batch_size": batch_size, "max_tokens": max_tokens}
    chosen, done = parts or list(PARTS), {}
    with tempfile.TemporaryDirectory(prefix="bench-chatlm-") as temporary:
        folder = Path(temporary).absolute()
        rows = data.absolute() if data else dialogues(folder / "dialogues")
        if "speed" in chosen:
            words = race_words(settings, rows, folder / "race")
            name = data.name if data else "chatterbot-corpus 1.3.3, Chinese"
            kept = {**settings, "data": name, "warm_up_epochs": WARM_UP, "model": "tiny"}
            done["speed"] = {**speed(seeds or list(SEEDS), words), "settings": kept}
        common = files(folder / "memory", rows) if chosen != ["speed"] else []
        if "memory" in chosen:
            done["memory"] = memory(folder / "memory", common)
        if "largest" in chosen:
            done["largest"] = largest(folder / "memory", common)
    keep(done, out)
    report(done)
    return 0 if all(passed(done).values()) else 1


if __name__ == "__main__":
    sys.exit(harness.run(main))
