"""`make demo`: what brimful answers in seconds without a card, then its whole work on this CPU.

Predicts a GPT-2 on two cards that need not be here. Then audits the captcha example, tunes it for
this CPU, pastes the command that tuning ends with, and trains both ways at equal samples seen.
Everything that is printed was measured or computed in this run.
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
GPT = os.path.relpath(HERE / "gpt" / "train.py")
# A card, and the batch size that is asked about; the placeholder asks for the largest that fits.
PREDICTIONS = (("a100-40gb", "{batch_size}"), ("rtx3090", "64"))
CAPTCHA = os.path.relpath(HERE / "captcha" / "train.py")
OUT = HERE / "captcha" / "out"
DEFAULT_BATCH_SIZE, DEFAULT_WORKERS = 64, 2  # what examples/captcha/train.py takes by itself
# For tuning here: an epoch of the demo's few images should still have some steps.
MAX_BATCH_SIZE = 128
ENDINGS = {0: "done", 3: "does not fit"}


@dataclass(frozen=True)
class Training:
    """One run of the script from start to end."""

    images_per_s: float
    wall_s: float
    peak_resident_bytes: int
    loss: float


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=1_024, help="to tune and train on")
    parser.add_argument(
        "--max-batch-size",
        type=int,
        default=MAX_BATCH_SIZE,
        help="the largest that tuning tries here",
    )
    args = parser.parse_args()
    images = args.images
    OUT.mkdir(parents=True, exist_ok=True)

    step("Does it fit a card that is not here?")
    for card, batch_size in PREDICTIONS:
        command = [sys.executable, GPT, "--batch-size", batch_size]
        run_brimful("predict", "--gpu", card, "--", *command)

    step(
        "The rest trains on this CPU: audit, tune, and before and after. It takes some 5 minutes "
        "on two quiet cores, longer beside other work; Ctrl-C ends it"
    )
    print(f"First {images:,} captchas are drawn, and an eighth as many for validation (once)")
    subprocess.run(
        train_command(DEFAULT_BATCH_SIZE, images, "--epochs", "0"),
        check=True,
        stdout=subprocess.DEVNULL,
    )

    step("What does the script really do?")
    audited = train_command(DEFAULT_BATCH_SIZE, images)
    show_audit(brimful_json("audit", "--device", "cpu", command=audited))

    step("Which settings have the highest throughput on this CPU?")
    limits = ("--max-batch-size", str(args.max_batch_size), "--steps", "6")
    plan = brimful_json("tune", "--device", "cpu", *limits, command=audited)
    show_plan(plan)

    before, after = shlex.join(audited), plan["command_line"]
    if after == before:
        step(
            "Nothing that was run is clearly faster: the plan is the settings that the command had"
        )
    else:
        step(f"Train both ways on {images:,} images, in turn: before, after, after, before")
        runs = [train(command) for command in (before, after, after, before)]
        show_gain(plan, [runs[0], runs[3]], runs[1:3])

    page = OUT / "report.html"
    report = [sys.executable, "-m", "brimful", "report", plan["record"], "--out", str(page)]
    subprocess.run(report, check=True, stdout=subprocess.DEVNULL)
    print(f"\nThe page: {os.path.relpath(page)}")


def train_command(batch_size: int, samples: int, *flags: str) -> list[str]:
    numbers = {"batch-size": batch_size, "workers": DEFAULT_WORKERS, "samples": samples}
    words = [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
    return [sys.executable, CAPTCHA, *words, *flags]


def step(sentence: str) -> None:
    print(f"\n=== {sentence}", flush=True)


def run_brimful(*words: str, stdout: int | None = None) -> subprocess.CompletedProcess[str]:
    """One call of the command line; it prints to this terminal, or to `stdout`."""
    shown = ["python" if word == sys.executable else word for word in words]
    print(f"$ brimful {' '.join(shown)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "brimful", *words], stdout=stdout, text=True)
    if done.returncode not in ENDINGS:
        sys.exit(f"brimful {words[0]} ended with exit code {done.returncode}\n{done.stdout or ''}")
    return done


def brimful_json(verb: str, *options: str, command: list[str]) -> dict:
    """The JSON object of one call, which is kept in the `out` folder."""
    text = run_brimful(verb, *options, "--json", "--", *command, stdout=subprocess.PIPE).stdout
    (OUT / f"{verb}.json").write_text(text, encoding="utf-8")
    return json.loads(text)


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
