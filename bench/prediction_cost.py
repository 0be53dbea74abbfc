"""What a prediction costs, as a multiple of what the script itself takes before it touches the
card, and in host memory.

    python -m bench.prediction_cost [--only mlp billion] [--out bench/results]

Each script goes through `brimful predict` as a user calls it, its largest batch size included, in a
process of its own. The script's own share is measured apart: the same script, ended at the moment
when it first asks anything of the card, so after its imports and what data it loads before that.
Imports and data that it puts off until then count as the prediction's.

Both sides take turns, and what is told is the median of each round's ratio of processor seconds:
what else runs on a machine meets both alike. Of host memory it is the most that a prediction's
processes held at once less the least of the script alone; what processes share counts for each of
them. Two limits are checked: the median ratio over the scripts, and 1 GiB for a model of a billion
parameters that is made on the card.
"""

import contextlib
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import psutil

from bench import harness
from bench.harness import MIB
from bench.scripts_table import PROGRAMS

SCRIPTS = harness.ROOT / "bench" / "cost"
LIMIT_RATIO, LIMIT_BYTES = 7.0, 1 << 30
# Two of a billion parameters, two that repeat much, one that starts workers at each epoch, and
# programs of each kind; many of the table's do the same in other words.
CHOSEN = (
    *("billion", "billion --empty", "accumulating", "streaming", "mlp", "lstm_lm", "t5_generate"),
    *("checkpointed_transformer", "trainer_gpt2", "accelerate_images", "lightning_unet"),
    *("peft_lora", "dcgan", "contrastive", "vit_ema", "unet_segmentation"),
)
TIME_LIMIT_S = 600
LOOK_EVERY_S = 0.02

# Ends the process when the script first asks anything of the card. Tells what brimful took
# meanwhile, torch not counted.
UNTIL_THE_CARD = """
import os, runpy, sys, time
import torch
before = time.process_time()
from brimful_inside import imaginary
from brimful_inside.wire import Card
imaginary.ImaginaryGpu.touch = lambda self: os._exit(0)
imaginary.enter(Card("a card", 80 << 30, 1 << 30, [8, 0], 108))
os.write(1, b"brimful %r\\n" % (time.process_time() - before))
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Weighed:
    """What a command and all its processes took together."""

    code: int
    processor_s: float
    wall_s: float
    peak_bytes: int  # resident, of all processes at one moment
    out: str
    err: str


@dataclass(frozen=True)
class Cost:
    """One script's prediction, and its own share (`script_*`, of a run until it asks for the card);
    of each round.
    """

    name: str
    trials: int
    processor_s: list[float]
    wall_s: list[float]
    peak_bytes: list[int]
    script_processor_s: list[float]
    script_peak_bytes: list[int]
    largest_batch_size: int | None
    error: str | None = None

    @property
    def ratio(self) -> float:
        """Processor seconds of the prediction over the script's own: the median of the rounds."""
        rounds = zip(self.processor_s, self.script_processor_s, strict=True)
        return statistics.median(whole / script for whole, script in rounds)

    @property
    def over_bytes(self) -> int:
        return max(self.peak_bytes) - min(self.script_peak_bytes)


def weigh(words: list[str], home: str | None = None) -> Weighed:
    """Runs a command in a folder of its own, and looks at the memory of its family fifty times a
    second.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        before, begun, peak = harness.processor_s(), time.perf_counter(), 0
        process = subprocess.Popen(
            words, cwd=folder, env=harness.environment(home), stdout=out, stderr=err
        )
        while process.poll() is None and time.perf_counter() - begun < TIME_LIMIT_S:
            peak = max(peak, sum(_resident_bytes(member) for member in _family(process.pid)))
            time.sleep(LOOK_EVERY_S)
        if process.poll() is None:  # its trials have sessions of their own
            for member in reversed(_family(process.pid)):
                with contextlib.suppress(psutil.Error):
                    member.kill()
        code, wall_s = process.wait(), time.perf_counter() - begun
        out.seek(0)
        err.seek(0)
        taken_s = harness.processor_s() - before
        return Weighed(code, taken_s, wall_s, peak, out.read(), err.read())


def _family(pid: int) -> list[psutil.Process]:
    """A process and its descendants."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def _without_brimful(script: Weighed) -> float:
    """Processor seconds of a run until the card was asked for, without those that brimful took to
    be there.
    """
    first = script.out.partition("\n")[0]
    brimful_s = float(first.removeprefix("brimful ")) if first.startswith("brimful ") else 0.0
    return script.processor_s - brimful_s


def cost_of(name: str, command: list[str], gpu: str, rounds: int = 3) -> Cost:
    """`command` is the script and its arguments, its batch size given."""
    alone, wholes, trials = [], [], 0
    predict = [sys.executable, "-m", "brimful", "predict", "--gpu", gpu, "--json", "--"]
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as home:
            alone.append(weigh([sys.executable, "-c", UNTIL_THE_CARD, *command], home))
            wholes.append(weigh([*predict, sys.executable, *command], home))
            trials = len(list(Path(home).rglob("trial_config.json")))
    failed = next((run.err.strip().splitlines()[-1:] for run in alone if run.code), None)
    try:
        answer = json.loads(wholes[-1].out)
    except ValueError:
        answer, failed = {}, failed or wholes[-1].err.strip().splitlines()[-1:]
    if "error" in answer:
        failed = [answer["error"].get("problem", "")]
    return Cost(
        name,
        trials,
        [run.processor_s for run in wholes],
        [run.wall_s for run in wholes],
        [run.peak_bytes for run in wholes],
        [_without_brimful(run) for run in alone],
        [run.peak_bytes for run in alone],
        answer.get("largest_batch_size"),
        " ".join(failed) if failed is not None else None,
    )


def scripts() -> dict[str, tuple[list[str], str]]:
    """(script with its arguments, card) by name: the programs of bench/cost, and those of
    bench/scripts that run here.
    """
    commands = {}
    for words in ("billion", "billion --empty", "accumulating", "streaming"):
        name, *flags = words.split()
        script = str(SCRIPTS / f"{name}.py")
        commands[words] = ([script, "--batch-size", "4", *flags], "a100-80gb")
    for program in PROGRAMS:
        is_here = all(importlib.util.find_spec(module) is not None for module in program.needs)
        if is_here and not program.prepare and not program.launcher:
            commands[program.key] = (program.command("python")[1:], program.gpu)
    return commands


def summary(costs: list[Cost]) -> dict[str, Any]:
    """The two figures that have a limit, over the scripts that could be predicted."""
    done = [cost for cost in costs if cost.error is None]
    large = [cost.over_bytes for cost in done if cost.name.startswith("billion")]
    return {
        "scripts": len(done),
        "median_ratio": statistics.median(cost.ratio for cost in done) if done else None,
        "billion_over_bytes": max(large) if large else None,
    }


def holds(figures: dict[str, Any]) -> bool:
    """Whether what was measured is within the limits."""
    ratio, over = figures["median_ratio"], figures["billion_over_bytes"]
    return (ratio is None or ratio <= LIMIT_RATIO) and (over is None or over <= LIMIT_BYTES)


def table(costs: list[Cost]) -> list[str]:
    heads = f"{'trials':>7}{'s':>8}{'alone s':>8}{'ratio':>7}{'wall s':>8}"
    lines = [f"{'script':28}{heads}{'alone MiB':>10}{'over MiB':>10}"]
    for cost in costs:
        seconds, alone, wall = (
            statistics.median(each)
            for each in (cost.processor_s, cost.script_processor_s, cost.wall_s)
        )
        numbers = f"{cost.trials:>7}{seconds:>8.2f}{alone:>8.2f}{cost.ratio:>7.2f}{wall:>8.1f}"
        memory = f"{min(cost.script_peak_bytes) / MIB:>10.0f}{cost.over_bytes / MIB:>10.0f}"
        lines.append(f"{cost.name:28}{numbers}{memory}  {(cost.error or '')[:60]}".rstrip())
    return lines


def main(
    *,
    only: Annotated[list[str] | None, f"scripts by name (default: {', '.join(CHOSEN)})"] = None,
    rounds: Annotated[int, "of the prediction and of the script's own share, in turn"] = 3,
    out: harness.Out = harness.RESULTS,
) -> int:
    known = scripts()
    costs: list[Cost] = []
    for name, (command, gpu) in harness.choose(
        known, only or [name for name in CHOSEN if name in known]
    ).items():
        costs.append(cost_of(name, command, gpu, rounds))
        harness.say(table(costs)[-1])
    print("\n".join(table(costs)))
    figures = summary(costs)
    print(", ".join(f"{name}: {value}" for name, value in figures.items()))
    what = "processor seconds of predictions over those of the script until it asks for the card"
    result = {
        **harness.heading(what),
        "rounds": rounds,
        "limits": {"median_ratio": LIMIT_RATIO, "billion_over_bytes": LIMIT_BYTES},
        "figures": figures,
        "rows": [
            {**asdict(cost), "ratio": cost.ratio, "over_bytes": cost.over_bytes} for cost in costs
        ],
    }
    harness.keep("prediction_cost", result, out)
    return 0 if holds(figures) else 1


if __name__ == "__main__":
    sys.exit(harness.run(main))
