"""What a table of all cards costs beside the prediction for one: `brimful predict --gpu all`, by
turns with one card and three.

    python -m bench.cards_cost [--only captcha lora] [--rounds 1] [--out bench/results]

Each question is asked as a user asks it, in a process of its own; seconds are those of all its
processes. Round by round each question has its turn, and what is told of several rounds is the
median of each round's ratio to one card. The limit is twice.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from typing import Annotated

from bench import harness

LIMIT = 2.0
QUESTIONS = {"one": "a100-80gb", "three": "l4,rtx4090,a100-80gb", "all": "all"}
CAPTCHA = str(harness.ROOT / "examples" / "captcha" / "train.py")
LORA = str(harness.ROOT / "bench" / "cost" / "lora.py")


@dataclass(frozen=True)
class Turn:
    program: str
    question: str
    cards: int
    trials: int
    processor_s: float
    wall_s: float


def programs(folder: str) -> dict[str, list[str]]:
    """The captcha example with its images, which are drawn now, and LoRA of a model of 7 billion
    parameters.
    """
    data = ["--data", f"{folder}/captchas"]
    draw = [*data, "--out", f"{folder}/out", "--device", "cpu", "--epochs", "0"]
    harness.output_of([sys.executable, CAPTCHA, *draw])
    size = ["--batch-size", "{batch_size}"]
    return {"captcha": [CAPTCHA, *data, *size], "lora": [LORA, *size]}


def turn(program: str, question: str, words: list[str]) -> Turn:
    verb = ["predict", "--gpu", QUESTIONS[question], "--time-limit", "30m"]
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        report = harness.brimful(verb, [sys.executable, *words], folder, 3600)
        wall_s = time.perf_counter() - begun
    if report["exit_code"]:
        sys.exit(f"{program}, {question}: {report['answer']}")
    cards = max(1, len(report["answer"]["which"]))
    return Turn(program, question, cards, report["trials"], report["seconds"], wall_s)


def ratio(turns: list[Turn], program: str, question: str, clock: str) -> float:
    """Seconds of a question beside one card's: the median over the rounds."""
    several, single = (
        [getattr(t, clock) for t in turns if (t.program, t.question) == (program, asked)]
        for asked in (question, "one")
    )
    return statistics.median(a / b for a, b in zip(several, single, strict=True))


def figures(turns: list[Turn]) -> dict[str, dict[str, float]]:
    return {
        program: {
            f"{question}_{clock}": ratio(turns, program, question, f"{clock}_s")
            for question in QUESTIONS
            for clock in ("processor", "wall")
        }
        for program in dict.fromkeys(turn.program for turn in turns)
    }


def main(
    *,
    only: Annotated[list[str] | None, "captcha, lora"] = None,
    rounds: int = 1,
    out: harness.Out = harness.RESULTS,
) -> int:
    turns: list[Turn] = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = harness.choose(programs(folder), only)
        for _ in range(rounds):
            for program, words in chosen.items():
                for question in QUESTIONS:
                    turns.append(turn(program, question, words))
                    harness.say(turns[-1])
    what = "processor and wall time of predictions for one, three and all cards; ratios to one"
    result = {
        **harness.heading(what, "transformers", "peft"),
        "rounds": rounds,
        "limit": LIMIT,
        "ratios": figures(turns),
        "turns": [asdict(each) for each in turns],
    }
    for program, ratios in result["ratios"].items():
        print(
            f"{program}: all cards take {ratios['all_processor']:.2f} times the processor time of "
            f"one ({ratios['all_wall']:.2f} of the clock's), three cards "
            f"{ratios['three_processor']:.2f} ({ratios['three_wall']:.2f})"
        )
    harness.keep("cards_cost", result, out)
    return int(any(ratios["all_processor"] >= LIMIT for ratios in result["ratios"].values()))


if __name__ == "__main__":
    sys.exit(harness.run(main))
