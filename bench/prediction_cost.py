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

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bench.probe_cost import cpu_name
from bench.scripts_table import PROGRAMS

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
OWN = Path(__file__).parent / "cost"
LIMIT_RATIO, LIMIT_BYTES = 7.0, 1 << 30
# Two of a billion parameters, two that repeat much, one that starts workers at each epoch, and
# programs of each kind; many of the table's do the same in other words.
CHOSEN = (
    "billion",
    "billion --empty",
    "accumulating",
    "answering",
    "streaming",
    "mlp",
    "lstm_lm",
    "checkpointed_transformer",
    "trainer_gpt2",
    "accelerate_images",
    "lightning_unet",
    "peft_lora",
    "dcgan",
    "contrastive",
    "vit_ema",
    "unet_segmentation",
    "ddpm_unet",
)
TIME_LIMIT_S = 600
LOOK_EVERY_S = 0.02
MIB = 1 << 20

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
    """One script's prediction, and its own share (`own_*`, of a run until it asks for the card); of
    each round.
    """

    name: str
    trials: int
    processor_s: list[float]
    wall_s: list[float]
    peak_bytes: list[int]
    own_processor_s: list[float]
    own_peak_bytes: list[int]
    largest_batch_size: int | None
    error: str | None = None

    @property
    def ratio(self) -> float:
        """Processor seconds of the whole prediction to the script's own: the median of the rounds."""
        return statistics.median(
            whole / own for whole, own in zip(self.processor_s, self.own_processor_s, strict=True)
        )

    @property
    def over_bytes(self) -> int:
        return max(self.peak_bytes) - min(self.own_peak_bytes)


def weigh(
    words: list[str], environment: dict[str, str], folder: str, limit_s: float = TIME_LIMIT_S
) -> Weighed:
    """Runs a command, and looks at the memory of its family fifty times a second."""
    before, begun, peak = _processor_s(), time.perf_counter(), 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(words, cwd=folder, env=environment, stdout=out, stderr=err)
        while process.poll() is None and time.perf_counter() - begun < limit_s:
            peak = max(peak, process_tree_bytes(process.pid))
            time.sleep(LOOK_EVERY_S)
        if process.poll() is None:
            _end_family(process.pid)
        code, wall = process.wait(), time.perf_counter() - begun
        out.seek(0)
        err.seek(0)
        return Weighed(code, _processor_s() - before, wall, peak, out.read(), err.read())


def _weigh_apart(words: list[str], environment: dict[str, str]) -> Weighed:
    """In a folder of its own: scripts write, and may not like what the last one wrote."""
    with tempfile.TemporaryDirectory() as folder:
        return weigh(words, environment, folder)


def _end_family(pid: int) -> None:
    """Kills a process that took too long, and what it started: its trials have sessions of their
    own.
    """
    root = psutil.Process(pid)
    for process in [*root.children(recursive=True), root]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def process_tree_bytes(pid: int) -> int:
    """Resident bytes of a process and its descendants."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
    except psutil.Error:
        return 0
    return total


def _processor_s() -> float:
    """Of ended children, theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def environment(home: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BRIMFUL_TRIAL_CONFIG")}
    source = str(ROOT / "src")
    return {
        **kept,
        "BRIMFUL_HOME": home,
        "PYTHONPATH": source,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def _without_brimful(own: Weighed) -> float:
    """Processor seconds of a run until the card was asked for, without those that brimful took to
    be there.
    """
    first = own.out.partition("\n")[0]
    return own.processor_s - (
        float(first.removeprefix("brimful ")) if first.startswith("brimful ") else 0.0
    )


def cost_of(name: str, command: list[str], gpu: str, rounds: int = 3) -> Cost:
    """`command` is the script and its arguments, its batch size given."""
    own, wholes = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as home:
            variables = environment(home)
            own.append(_weigh_apart([sys.executable, "-c", UNTIL_THE_CARD, *command], variables))
            words = [
                sys.executable,
                "-m",
                "brimful",
                "predict",
                "--gpu",
                gpu,
                "--json",
                "--",
                sys.executable,
                *command,
            ]
            wholes.append(_weigh_apart(words, variables))
            trials = len(list(Path(home).rglob("trial_config.json")))
    failed = next((one.err.strip().splitlines()[-1:] for one in own if one.code), None)
    try:
        answer = json.loads(wholes[-1].out)
    except ValueError:
        answer, failed = {}, failed or wholes[-1].err.strip().splitlines()[-1:]
    if "error" in answer:
        failed = [answer["error"].get("problem", "")]
    return Cost(
        name,
        trials,
        [one.processor_s for one in wholes],
        [one.wall_s for one in wholes],
        [one.peak_bytes for one in wholes],
        [_without_brimful(one) for one in own],
        [one.peak_bytes for one in own],
        answer.get("largest_batch_size"),
        " ".join(failed) if failed is not None else None,
    )


def scripts() -> dict[str, tuple[list[str], str]]:
    """(script with its arguments, card) by name: the programs of bench/cost, and those of
    bench/scripts that run here.
    """
    found = {
        " ".join([name, *more]): (
            [str(OWN / f"{name}.py"), "--batch-size", "4", *more],
            "a100-80gb",
        )
        for name, *more in (("billion",), ("billion", "--empty"), ("accumulating",), ("streaming",))
    }
    if importlib.util.find_spec("transformers") is not None:
        found["answering"] = ([str(OWN / "answering.py"), "--batch-size", "4"], "a100-80gb")
    for program in PROGRAMS:
        words = program.command("python")
        here = all(importlib.util.find_spec(module) is not None for module in program.needs)
        if here and not program.prepare and not program.launcher:
            found[program.key] = (list(words[1:]), program.gpu)
    return found


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
    lines = [
        f"{'script':28}{'trials':>7}{'s':>8}{'own s':>8}{'ratio':>7}{'wall s':>8}{'own MiB':>9}{'over MiB':>10}"
    ]
    for cost in costs:
        seconds, own, wall = (
            statistics.median(each)
            for each in (cost.processor_s, cost.own_processor_s, cost.wall_s)
        )
        numbers = f"{cost.trials:>7}{seconds:>8.2f}{own:>8.2f}{cost.ratio:>7.2f}{wall:>8.1f}"
        memory = f"{min(cost.own_peak_bytes) / MIB:>9.0f}{cost.over_bytes / MIB:>10.0f}"
        lines.append(
            f"{cost.name:28}{numbers}{memory}" + (f"  {cost.error[:60]}" if cost.error else "")
        )
    return lines


def keep(costs: list[Cost], folder: Path, rounds: int) -> Path:
    """Writes what there is so far."""
    today = datetime.date.today()
    result = {
        "bench": "prediction_cost",
        "what": "processor seconds of predictions to those of the script until it asks for the "
        "card, "
        "median ratio of rounds by "
        "turns; host memory beyond it, what processes share counted for each",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": version("torch"),
        "date": today.isoformat(),
        "rounds": rounds,
        "limits": {"median_ratio": LIMIT_RATIO, "billion_over_bytes": LIMIT_BYTES},
        "figures": summary(costs),
        "rows": [
            {**asdict(cost), "ratio": cost.ratio, "over_bytes": cost.over_bytes} for cost in costs
        ],
    }
    name = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    path = folder / f"prediction_cost-{name}-{today:%Y-%m}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help=f"scripts by name (default: {', '.join(CHOSEN)})"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="of the prediction and of the script's own share, in turn",
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    known = scripts()
    names = args.only or [name for name in CHOSEN if name in known]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"There is no script {', '.join(unknown)}. There are {', '.join(known)}.")
    costs: list[Cost] = []
    for name in names:
        costs.append(cost_of(name, *known[name], rounds=args.rounds))
        print(table(costs)[-1], file=sys.stderr, flush=True)
        path = keep(costs, args.out, args.rounds)
    figures = summary(costs)
    print("\n".join(table(costs)))
    print(", ".join(f"{name}: {value}" for name, value in figures.items()))
    print(f"written to {path}")
    return 0 if holds(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
