"""The chat recipe against the loop its model's authors wrote and against Transformers' Trainer:
`make bench-chatlm`.

    speed     tokens per second of the tiny model on this CPU: the recipe over a loop with fixed
    padding and whole logits, and
              over Seq2SeqTrainer (as it is, and with its own batches by length), and the losses of
              all after the same tokens
    memory    of the model of 0.2 billion parameters on a card of 20 GB, predicted, over the plain
    loop's at the same batch largest   the batch size that `brimful tune` names for it, over the
    true largest

A token is one of the data: padding counts on no side. For each seed all sides train one after the
other, each in a process of its own. `--parts` takes some of these; what an earlier run of the month
found of the others stays in the result.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.chatlm_data import dialogues, tokenizer_in
from bench.chatlm_memory import files, largest, memory
from bench.probe_cost import cpu_name
from bench.turns import spread

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
SEEDS = (1, 2, 3)
# epochs whose times do not count: the recipe begins with the longest rows, and caches are cold
WARM_UP = 2
SIDES = ("recipe", "plain", "trainer", "trainer-by-length")
PARTS = ("speed", "memory", "largest")
ONE_THREAD = {
    "OMP_NUM_THREADS": "1"
}  # several would wait for each other wherever other processes run
LIMITS = {
    "plain": 2.0,
    "trainer": 1.1,
    "memory": 0.6,
    "largest": 0.98,
}  # memory at most, all others at least
VERSIONS = ("brimful", "torch", "transformers", "tokenizers", "accelerate")
# Student's t: 95 % of differences of two means of so many seeds each are within so many standard
# errors, if there is none.
TIMES_ERROR = {2: 4.303, 3: 2.776, 4: 2.447, 5: 2.306}


def race_words(options: argparse.Namespace, data: Path, folder: Path) -> list[str]:
    """Of the recipe's own command line, for all sides."""
    tokenizer = tokenizer_in(folder / "tokenizer", data, options.vocab_size)
    return [
        "--data",
        str(data),
        "--tokenizer",
        str(tokenizer),
        "--cache",
        str(folder / "cache"),
        "--eval-share",
        "0.1",
        "--model",
        "tiny",
        "--device",
        "cpu",
        "--precision",
        options.precision,
        "--no-bleu",
        "--epochs",
        str(options.epochs),
        "--batch-size",
        str(options.batch_size),
        "--max-tokens",
        str(options.max_tokens),
    ]


def in_a_process(words: list[str]) -> dict[str, Any]:
    """One race. Its own process: what one training left in memory is not the next one's affair."""
    variables = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
        "HF_HUB_OFFLINE": "1",
        **ONE_THREAD,
    }
    argv = [sys.executable, "-m", "bench.chatlm_race", *words]
    done = subprocess.run(argv, cwd=ROOT, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return json.loads(done.stdout.splitlines()[-1])


def speed(seeds: list[int], words: list[str]) -> dict[str, Any]:
    """Every side against the recipe."""
    races: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for seed in seeds:
        for side in SIDES:
            races[side].append(in_a_process(["--side", side, "--seed", str(seed), *words]))
            figures = summary(races["recipe"][-1:], races[side][-1:])
            print(f"  seed {seed}, {sentence(side, figures)}", file=sys.stderr, flush=True)
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
        "tokens_per_s_ratio": spread([ratio for one in each for ratio in one]),
        "cpu_time_ratio": spread([ratio for one in of_processor for ratio in one]),
        "ratio_of_each_seed": [statistics.median(one) for one in each],
        "tokens_per_s": {
            name: statistics.median(
                one["tokens_per_epoch"] / second
                for one in races
                for second in one["seconds"][WARM_UP:]
            )
            for name, races in (("recipe", recipe), ("other", other))
        },
        "loss": {
            rows: compared(*([one["loss"][rows] for one in races] for races in (recipe, other)))
            for rows in ("train", "held_out")
        },
    }


def ratios(
    recipe: list[dict[str, Any]], other: list[dict[str, Any]], clock: str
) -> list[list[float]]:
    """Of each seed and epoch: the other's time over the recipe's."""
    pairs = [
        (one[clock][WARM_UP:], two[clock][WARM_UP:]) for one, two in zip(recipe, other, strict=True)
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


def passed(result: dict[str, Any]) -> dict[str, bool]:
    """Of each part that was run: whether its limit holds."""
    parts, held = result["parts"], {}
    for name in ("plain", "trainer"):
        if "speed" in parts:
            side = parts["speed"]["against"][name]
            held[name] = (
                side["tokens_per_s_ratio"]["median"] >= LIMITS[name]
                and not side["loss"]["train"]["is_worse"]
            )
    if "memory" in parts:
        held["memory"] = (
            parts["memory"]["ratio"][parts["memory"]["headline"]]["device_bytes"]
            <= LIMITS["memory"]
        )
    if "largest" in parts:
        found = parts["largest"]
        held["largest"] = found["share"] >= LIMITS["largest"] and found["out_of_memory_trials"] == 0
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


def report(result: dict[str, Any]) -> None:
    held, parts = passed(result), result["parts"]
    for side, figures in parts.get("speed", {}).get("against", {}).items():
        print(sentence(side, figures))
    for name, ratio in parts.get("memory", {}).get("ratio", {}).items():
        print(
            f"memory, {name}: {ratio['device_bytes']:.2f} of the plain loop's (allocated: "
            f"{ratio['allocated_bytes']:.2f})"
        )
    if "largest" in parts:
        found = parts["largest"]
        trials = f"{found['trials']} trials, {found['out_of_memory_trials']} out of memory"
        print(
            f"largest batch: {found['batch_size']} named, {found['true_largest']} true, "
            f"{found['share']:.1%}; {trials}"
        )
    for name, holds in held.items():
        limit = f"{'at most' if name == 'memory' else 'at least'} {LIMITS[name]:g}"
        print(f"  {name}: {limit} asked, {'held' if holds else 'MISSED'}")


def run_parts(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What each part found, and how."""
    data = options.data.absolute() if options.data else dialogues(folder / "dialogues")
    found: dict[str, Any] = {}
    if "speed" in options.parts:
        found["speed"] = speed(options.seeds, race_words(options, data, folder / "race"))
        found["speed"]["settings"] = {
            "epochs": options.epochs,
            "warm_up_epochs": WARM_UP,
            "batch_size": options.batch_size,
            "max_tokens": options.max_tokens,
            "precision": options.precision,
            "vocab_size": options.vocab_size,
            "seeds": options.seeds,
            "model": "tiny",
            "data": _name(options.data),
            **ONE_THREAD,
            "load_average": os.getloadavg(),
        }
    if {"memory", "largest"} & set(options.parts):
        common = files(folder / "memory", data)
        for name, make in (("memory", memory), ("largest", largest)):
            if name in options.parts:
                begun = time.perf_counter()
                found[name] = {
                    **make(folder / "memory", common),
                    "seconds": time.perf_counter() - begun,
                }
    return {name: {**one, "date": datetime.date.today().isoformat()} for name, one in found.items()}


def _name(data: Path | None) -> str:
    return "chatterbot-corpus 1.3.3, Chinese" if data is None else data.name


def keep(parts: dict[str, Any], folder: Path) -> tuple[Path, dict[str, Any]]:
    name = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    path = folder / f"chatlm-{name}-{datetime.date.today():%Y-%m}.json"
    before = json.loads(path.read_text())["parts"] if path.exists() else {}
    result = {
        "what": "the chat recipe against a plain loop and Seq2SeqTrainer: tokens per second, loss, "
        "memory; largest batch",
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in VERSIONS},
        "date": datetime.date.today().isoformat(),
        "limits": LIMITS,
        "parts": before | parts,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path, result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--data",
        type=Path,
        help="rows of two texts; without it the Chinese dialogues of a wheel of PyPI",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=1024, help="of the recipe: the preset's")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="for data; kept. Else a temporary one")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(argv)
    if options.epochs < WARM_UP + 2:
        parser.error(f"--epochs {options.epochs}: {WARM_UP} warm up, so {WARM_UP + 2} at least")
    with tempfile.TemporaryDirectory(prefix="bench-chatlm-") as temporary:
        parts = run_parts(options, (options.folder or Path(temporary)).absolute())
    path, result = keep(parts, options.out)
    report(result)
    print(f"kept in {path}")
    return 0 if all(passed(result).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
