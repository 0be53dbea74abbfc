"""`make demo`: brimful's main job on the captcha example, on this machine, from drawing the images
to a measured gain.

Audits the script, predicts two cards that need not be here, tunes for this CPU, pastes the command
that tuning ends with, and trains both ways at equal samples seen. Everything that is printed was
measured or computed in this run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SCRIPT = os.path.relpath(HERE / "captcha" / "train.py")
OUT = HERE / "captcha" / "out"
DEFAULT_BATCH_SIZE, DEFAULT_WORKERS = 64, 2  # what examples/captcha/train.py takes by itself
MAX_BATCH_SIZE = (
    128  # for tuning here: an epoch of the demo's few images should still have some steps
)
CARDS = ("a100-40gb", "rtx3080-20gb")
ENDINGS = {0: "done", 3: "does not fit"}
GIB = 1 << 30


@dataclass(frozen=True)
class Training:
    """One run of the script from start to end."""

    images_per_s: float
    wall_s: float
    peak_resident_bytes: int
    loss: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--images",
        type=int,
        default=1_024,
        help="to tune and train on: few, so that it takes seconds",
    )
    parser.add_argument(
        "--card-images",
        type=int,
        default=8_192,
        help="for the predictions: many, to leave the cards room",
    )
    parser.add_argument(
        "--max-batch-size",
        type=int,
        default=MAX_BATCH_SIZE,
        help="the largest that tuning tries here",
    )
    args = parser.parse_args()
    few, many = args.images, args.card_images
    OUT.mkdir(parents=True, exist_ok=True)
    step(
        f"Draw {many + few:,} captchas, and an eighth as many for validation (once; they are "
        "kept as PNG files)"
    )
    for samples in (many, few):
        subprocess.run(
            train_command(DEFAULT_BATCH_SIZE, samples, "--epochs", "0"),
            check=True,
            stdout=subprocess.DEVNULL,
        )

    step("What does the script really do?")
    show_audit(brimful("audit", "--device", "cpu", command=train_command(DEFAULT_BATCH_SIZE, few)))

    step("Would it fit a card that is not here?")
    for card in CARDS:
        show_prediction(
            card, brimful("predict", "--gpu", card, command=train_command("{batch_size}", many))
        )

    step("Which settings train fastest on this CPU?")
    limits = ("--max-batch-size", str(args.max_batch_size), "--steps", "6")
    plan = brimful(
        "tune", "--device", "cpu", *limits, command=train_command(DEFAULT_BATCH_SIZE, few)
    )
    show_plan(plan)

    before, after = shlex.join(train_command(DEFAULT_BATCH_SIZE, few)), plan["command_line"]
    if after == before:
        step(
            "Nothing that was run is clearly faster: the plan is the settings that the command had"
        )
    else:
        step(f"Train both ways on {few:,} images, in turn: before, after, after, before")
        runs = [train(command) for command in (before, after, after, before)]
        show_gain(plan, [runs[0], runs[3]], runs[1:3])

    page = OUT / "report.html"
    subprocess.run(
        [sys.executable, "-m", "brimful", "report", plan["record"], "--out", str(page)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    print(f"\nThe page: {os.path.relpath(page)}")


def train_command(batch_size: int | str, samples: int, *flags: str) -> list[str]:
    numbers = (
        "--batch-size",
        str(batch_size),
        "--workers",
        str(DEFAULT_WORKERS),
        "--samples",
        str(samples),
    )
    return [sys.executable, SCRIPT, *numbers, *flags]


def step(sentence: str) -> None:
    print(f"\n=== {sentence}", flush=True)


def brimful(verb: str, *options: str, command: list[str]) -> dict:
    """The JSON object of one call; its talk goes to this terminal, and the object is kept in the
    `out` folder.
    """
    shown = ["python" if word == sys.executable else word for word in command]
    print(f"$ brimful {verb} {' '.join(options)} -- {' '.join(shown)}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", "brimful", verb, *options, "--json", "--", *command],
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode not in ENDINGS:
        sys.exit(f"brimful {verb} ended with exit code {done.returncode}\n{done.stdout}")
    (OUT / f"{verb}{'-' + options[1] if verb == 'predict' else ''}.json").write_text(
        done.stdout, encoding="utf-8"
    )
    return json.loads(done.stdout)


def train(command_line: str) -> Training:
    """Runs a command line as a shell would when it is pasted."""
    begun = time.perf_counter()
    with open(OUT / "training.txt", "w+", encoding="utf-8") as words:
        process = subprocess.Popen(command_line, shell=True, stdout=words)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        words.seek(0)
        text = words.read()
    if process.returncode:
        sys.exit(f"the training ended with exit code {process.returncode}: {command_line}")
    loss, images_per_s = re.findall(r"loss ([\d.]+),.* ([\d.]+) images/s", text)[-1]
    return Training(
        float(images_per_s), time.perf_counter() - begun, used.ru_maxrss * 1024, float(loss)
    )


def show_audit(audit: dict) -> None:
    effective = audit["effective"]
    print(
        f"asked for {audit['requested'].get('batch_size')}, "
        f"{shown(effective['samples_per_step'], 'g')} samples go into a step"
    )
    print(
        f"a step takes {shown(audit['step_s'], '.2f')} s, {shown(audit['loading_share'], '.0%')} "
        "of it waiting for data"
    )
    for finding in audit["findings"]:
        print(
            f"  {finding['code']}: {finding['problem']} {finding['explanation']} "
            f"{finding['suggestion']}"
        )
    if not audit["findings"]:
        print("nothing to complain about")


def shown(value: float | None, form: str) -> str:
    return "an unknown number of" if value is None else format(value, form)


def show_prediction(card: str, answer: dict) -> None:
    if answer["peak"] is None:
        print(f"{card}: nothing fits")
        return
    low, high = answer["peak"]["device_interval_bytes"]
    print(
        f"{card}: up to {answer['largest_batch_size']:,} images a batch (limited by the "
        f"{answer['limited_by'] or 'card'}); "
        f"device peak {answer['peak']['device_bytes'] / GIB:.2f} GiB [{low / GIB:.2f}, "
        f"{high / GIB:.2f}] "
        f"of {answer['gpu']['total_bytes']['value'] / GIB:.2f}; {answer['seconds']:.0f} s"
    )


def show_plan(plan: dict) -> None:
    for setting in plan["settings"]:
        print(
            f"  {setting['name']}: {setting['requested']} -> {setting['effective']}  "
            f"({setting['why']})"
        )
    print(f"  {plan['trials']} trials, {plan['out_of_memory_trials']} out of memory")
    print(f"  {plan['command_line']}")


def show_gain(plan: dict, before: list[Training], after: list[Training]) -> None:
    """The table of before and after: the mean of two runs each."""

    def row(name: str, cells: list[str]) -> str:
        return f"  {name:32}" + "".join(f"{cell:>16}" for cell in cells)

    def mean(runs: list[Training], field: str) -> float:
        return statistics.mean(getattr(run, field) for run in runs)

    both = (before, after)
    workers = {setting["name"]: setting["effective"] for setting in plan["settings"]}.get(
        "num_workers", DEFAULT_WORKERS
    )
    gain = mean(both[1], "images_per_s") / mean(both[0], "images_per_s")
    print(row("", ["before", "after"]))
    print(row("batch size", [str(DEFAULT_BATCH_SIZE), str(plan["batch_size"])]))
    print(row("loader workers", [str(DEFAULT_WORKERS), str(workers)]))
    print(row("variables in the environment", ["0", str(len(plan["environment"]))]))
    print(row("images/s while training", [f"{mean(runs, 'images_per_s'):.1f}" for runs in both]))
    print(row("seconds, start to end", [f"{mean(runs, 'wall_s'):.1f}" for runs in both]))
    print(
        row(
            "peak resident memory, MiB",
            [f"{mean(runs, 'peak_resident_bytes') / (1 << 20):.0f}" for runs in both],
        )
    )
    print(row("mean loss over these images", [f"{mean(runs, 'loss'):.3f}" for runs in both]))
    print(f"\n  {gain:.2f} x the speed, measured in this run")


if __name__ == "__main__":
    main()
