"""What a table of all cards costs beside the prediction for one: `brimful predict --gpu all`, by
turns with one card and three.

    python -m bench.cards_cost [--only captcha lora] [--rounds 1] [--out bench/results]

Each question is asked as a user asks it, in a process of its own; seconds are those of all its
processes. Round by round each question has its turn, and what is told of several rounds is the
median of each round's ratio to one card. The limit is twice.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.prediction_cost import OWN, RESULTS, ROOT, environment, weigh
from bench.probe_cost import cpu_name

LIMIT = 2.0
QUESTIONS = {"one": "a100-80gb", "three": "l4,rtx4090,a100-80gb", "all": "all"}
CAPTCHA = str(ROOT / "examples" / "captcha" / "train.py")


@dataclass(frozen=True)
class Turn:
    program: str
    question: str
    cards: int
    trials: int
    traced_on: tuple[str, ...]  # cards of the trials, in order
    processor_s: float
    wall_s: float


def programs(folder: Path) -> dict[str, list[str]]:
    """The captcha example with its images, which are drawn now, and LoRA of a model of 7 billion
    parameters.
    """
    data = str(folder / "captchas")
    drawn = [
        sys.executable,
        CAPTCHA,
        "--data",
        data,
        "--out",
        str(folder / "out"),
        "--device",
        "cpu",
        "--epochs",
        "0",
    ]
    subprocess.run(drawn, check=True, capture_output=True, env=environment(str(folder)))
    return {
        "captcha": [CAPTCHA, "--data", data, "--batch-size", "{batch_size}"],
        "lora": [str(OWN / "lora.py"), "--batch-size", "{batch_size}"],
    }


def turn(program: str, question: str, words: list[str]) -> Turn:
    with tempfile.TemporaryDirectory() as folder:
        asked = [
            sys.executable,
            "-m",
            "brimful",
            "predict",
            "--gpu",
            QUESTIONS[question],
            "--json",
            "--time-limit",
            "30m",
        ]
        seen = weigh(
            [*asked, "--", sys.executable, *words], environment(folder + "/records"), folder, 3600
        )
        if seen.code:
            sys.exit(f"{program}, {question}: {seen.err.strip().splitlines()[-3:]}")
        trials = sorted(Path(folder, "records").rglob("trial_config.json"))
        names = tuple(json.loads(path.read_text())["card"]["name"] for path in trials)
    cards = max(1, len(json.loads(seen.out)["which"]))
    return Turn(program, question, cards, len(names), names, seen.processor_s, seen.wall_s)


def ratios(turns: list[Turn], program: str, question: str) -> tuple[float, float]:
    """(Processor time, wall time) of a question beside one card's: medians over the rounds."""
    mine, one = (
        [t for t in turns if (t.program, t.question) == (program, asked)]
        for asked in (question, "one")
    )
    pairs = list(zip(mine, one, strict=True))
    return (
        statistics.median(a.processor_s / b.processor_s for a, b in pairs),
        statistics.median(a.wall_s / b.wall_s for a, b in pairs),
    )


def figures(turns: list[Turn]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for program in dict.fromkeys(turn.program for turn in turns):
        for question in QUESTIONS:
            processor, wall = ratios(turns, program, question)
            found.setdefault(program, {}).update(
                {f"{question}_processor": processor, f"{question}_wall": wall}
            )
    return found


def keep(turns: list[Turn], folder: Path, rounds: int) -> Path:
    today = datetime.date.today()
    result: dict[str, Any] = {
        "bench": "cards_cost",
        "what": "processor and wall time of predictions for one, three and all cards; ratios to "
        "one, "
        "medians of the rounds",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "torch": version("torch"),
        "transformers": version("transformers"),
        "peft": version("peft"),
        "date": today.isoformat(),
        "rounds": rounds,
        "limit": LIMIT,
        "ratios": figures(turns),
        "turns": [asdict(turn) for turn in turns],
    }
    path = (
        folder
        / f"cards_cost-{re.sub(r'[^a-z0-9]+', '-', cpu_name().lower()).strip('-')}-{today:%Y-%m}.json"
    )
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", choices=("captcha", "lora"), default=("captcha", "lora")
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory() as folder:
        known = programs(Path(folder))
        for _ in range(args.rounds):
            for program in args.only:
                for question in QUESTIONS:
                    turns.append(turn(program, question, known[program]))
                    print(turns[-1], file=sys.stderr, flush=True)
    path = keep(turns, args.out, args.rounds)
    for program, of in figures(turns).items():
        print(
            f"{program}: all cards take {of['all_processor']:.2f} times the processor time of "
            f"one ({of['all_wall']:.2f} of the"
        )
        print(f"clock's), three cards {of['three_processor']:.2f} ({of['three_wall']:.2f})")
    print(f"written to {path}")
    return 0 if all(of["all_processor"] < LIMIT for of in figures(turns).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
