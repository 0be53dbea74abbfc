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

A second table says where the seconds by the clock go, which only a quiet machine can tell.
"""

import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import psutil

from bench import harness
from bench.harness import MIB
from bench.scripts_table import PROGRAMS

LIMIT_RATIO, LIMIT_BYTES = 7.0, 1 << 30
# Two of a billion parameters, one that repeats much, one that starts workers at each epoch, those
# that people waited for longest, one whose evaluation generates, and programs of each kind; many of
# the table's do the same in other words.
OF_COST = (
    *("billion", "billion --empty", "billion --layers 12 --width 768 --length 1024"),
    *("accumulating", "streaming", "graphs", "wgan_gp", "trainer_texts", "trainer_texts --lora"),
    *("speech_ctc", "whisper", "sentence_pairs"),
)
CHOSEN = (
    *(*OF_COST, "mlp", "lstm_lm", "t5_generate"),
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


class Parts(NamedTuple):
    """Seconds of a prediction by the clock, which make up its whole."""

    start: float  # brimful's own imports and its look at the machine
    torch: float  # until the first trial has imported torch
    first: float  # the rest of that trial: what the script imports, its data, its steps
    others: float  # further trials
    between: float  # traces read and replayed, sizes chosen, the answer made


class Round(NamedTuple):
    """One prediction, and the script's own share of it (a run until it asks for the card)."""

    processor_s: float
    wall_s: float
    peak_bytes: int  # resident, of all processes at one moment
    script_processor_s: float
    script_peak_bytes: int
    parts: Parts


@dataclass(frozen=True)
class Cost:
    """Of one script."""

    name: str
    rounds: list[Round]
    trials: int
    largest_batch_size: int | None

    @property
    def ratio(self) -> float:
        """Processor seconds of the prediction over the script's own: the median of the rounds."""
        return statistics.median(of.processor_s / of.script_processor_s for of in self.rounds)

    @property
    def over_bytes(self) -> int:
        most = max(of.peak_bytes for of in self.rounds)
        return most - min(of.script_peak_bytes for of in self.rounds)


def watched(call: Callable[[], Any], look: Callable[[], Any] = lambda: None) -> tuple[Any, int]:
    """Its result, and the most bytes that the processes which it starts hold at one moment, by a
    look fifty times a second.
    """
    peak = 0
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        while not running.done():
            family = psutil.Process().children(recursive=True)
            peak = max(peak, sum(map(_resident_bytes, family)))
            look()
            time.sleep(LOOK_EVERY_S)
    return running.result(), peak


class Clock:
    """When a prediction whose record is kept in `folder` was seen to begin its first trial, to have
    torch in it, and to have its result.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.begun = time.perf_counter()
        self.seen: dict[str, float] = {}

    def look(self) -> None:
        if "result" not in self.seen and self._durations():
            self._see("result")
        for path in self.folder.glob("records/*/trial-001/*"):
            self._see("begun")
            if path.name.startswith("wire-") and "torch_imported" in path.read_text():
                self._see("torch")

    def parts(self, wall_s: float) -> Parts:
        """Of a prediction that took so long and is over."""
        begun, torch, result = (self.seen[moment] for moment in ("begun", "torch", "result"))
        others = sum(self._durations()[1:])
        return Parts(begun, torch - begun, result - torch, others, wall_s - result - others)

    def _see(self, moment: str) -> None:
        self.seen.setdefault(moment, time.perf_counter() - self.begun)

    def _durations(self) -> list[float]:
        lines = "".join(path.read_text() for path in self.folder.glob("records/*/record.jsonl"))
        entries = (json.loads(line) for line in lines.splitlines(True) if line.endswith("\n"))
        return [row["duration_s"] for row in entries if row["entry"] == "trial"]


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def cost_of(name: str, command: list[str], gpu: str, rounds: int = 3) -> Cost:
    """`command` is the script and its arguments, its batch size given. Raises RuntimeError where
    it, or its prediction, fails.
    """
    words, made, report = [sys.executable, *command], [], {}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            before = harness.processor_s()
            alone = [sys.executable, "-c", UNTIL_THE_CARD, *command]
            printed, script_peak = watched(partial(harness.output_of, alone, folder))
            script_s = harness.processor_s() - before - float(printed.split(maxsplit=2)[1])
            verb, clock = ["predict", "--gpu", gpu], Clock(folder)
            ask = partial(harness.brimful, verb, words, folder, TIME_LIMIT_S)
            report, peak = watched(ask, clock.look)
            wall_s = time.perf_counter() - clock.begun
            parts = clock.parts(wall_s)
            made.append(Round(report["seconds"], wall_s, peak, script_s, script_peak, parts))
        if "error" in report["answer"]:
            raise RuntimeError(report["answer"]["error"]["problem"])
    return Cost(name, made, report["trials"], report["answer"]["largest_batch_size"])


def scripts() -> dict[str, tuple[list[str], str]]:
    """(script with its arguments, card) by name: the programs of bench/cost, and those of
    bench/scripts that run here.
    """
    commands = {}
    for words in OF_COST:
        name, *flags = words.split()
        script = str(harness.ROOT / "bench" / "cost" / f"{name}.py")
        commands[words] = ([script, "--batch-size", "4", *flags], "a100-80gb")
    for program in PROGRAMS:
        is_here = all(importlib.util.find_spec(module) is not None for module in program.needs)
        if is_here and not program.prepare and not program.launcher:
            commands[program.key] = (program.command("python")[1:], program.gpu)
    return commands


def summary(costs: list[Cost]) -> dict[str, Any]:
    """The two figures that have a limit, and the seconds by the clock."""
    large = [cost.over_bytes for cost in costs if cost.name.startswith("billion")]
    walls = sorted(statistics.median(of.wall_s for of in cost.rounds) for cost in costs)
    return {
        "scripts": len(costs),
        "median_ratio": statistics.median(cost.ratio for cost in costs) if costs else None,
        "billion_over_bytes": max(large) if large else None,
        "median_wall_s": statistics.median(walls) if walls else None,
        "longest_wall_s": walls[-1] if walls else None,
    }


def holds(figures: dict[str, Any]) -> bool:
    """Whether what was measured is within the limits."""
    ratio, over = figures["median_ratio"], figures["billion_over_bytes"]
    return (ratio is None or ratio <= LIMIT_RATIO) and (over is None or over <= LIMIT_BYTES)


def table(costs: list[Cost]) -> list[str]:
    heads = f"{'trials':>7}{'s':>8}{'alone s':>8}{'ratio':>7}{'wall s':>8}"
    lines = [f"{'script':28}{heads}{'alone MiB':>10}{'over MiB':>10}"]
    for cost in costs:
        seconds, wall, _, alone, *_ = map(
            statistics.median, zip(*(of[:-1] for of in cost.rounds), strict=True)
        )
        script_mib = min(of.script_peak_bytes for of in cost.rounds) / MIB
        numbers = f"{cost.trials:>7}{seconds:>8.2f}{alone:>8.2f}{cost.ratio:>7.2f}{wall:>8.1f}"
        lines.append(f"{cost.name:28}{numbers}{script_mib:>10.0f}{cost.over_bytes / MIB:>10.0f}")
    return lines


def parts_table(costs: list[Cost]) -> list[str]:
    """Of the round whose seconds by the clock are in the middle."""
    lines = [f"{'seconds by the clock':28}" + "".join(f"{name:>9}" for name in Parts._fields)]
    for cost in costs:
        middle = sorted(cost.rounds, key=lambda of: of.wall_s)[len(cost.rounds) // 2]
        lines.append(f"{cost.name:28}" + "".join(f"{seconds:>9.1f}" for seconds in middle.parts))
    return lines


def main(
    *,
    only: Annotated[list[str] | None, f"scripts by name (default: {', '.join(CHOSEN)})"] = None,
    rounds: Annotated[int, "of the prediction and of the script's own share, in turn"] = 3,
    out: harness.Out = harness.RESULTS,
) -> int:
    known = scripts()
    chosen = harness.choose(known, only or [name for name in CHOSEN if name in known])
    made, failed = harness.attempted(lambda name: cost_of(name, *known[name], rounds), list(chosen))
    costs = list(made.values())
    figures = summary(costs)
    print(*table(costs), "", *parts_table(costs), sep="\n")
    print(*(f"{name} failed: {why}" for name, why in failed.items()), sep="\n")
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
        "failed": failed,
    }
    harness.keep("prediction_cost", result, out)
    return 0 if holds(figures) else 1


if __name__ == "__main__":
    sys.exit(harness.run(main))
