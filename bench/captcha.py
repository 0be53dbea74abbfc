"""Wall time until 90 % of held-out captchas are read without a mistake, on a task that a CPU can
do: `make bench-captcha`.

The task is reduced: 4 digits (not 36 characters), images of 24 × 64 (not 60 × 160), 8,192 of them;
the network has 3.76 instead of 19.07 million parameters. Three ways to train on the same images,
each a command in a process of its own, timed from its start (imports and all) to the line that
prints the first evaluation of 90 % on the same 1,024 held-out images:

    example       examples/captcha/train.py as its authors ran it: batch 64, a PNG file a sample, no
                  workers
    large-batch   the recipe's preset of that name as it stands, 3,072 in an update; ended after 4
                  times what tuned took
    tuned         the recipe's preset of that name, over 1.25 epochs instead of its 20

by turns, for 3 seeds. Two factors show where the gain comes from, whose product it is but for
starting up: images needed, and images per second. The latter is taken apart one setting after the
other (`ladder`). Then loading by itself.
"""

import functools
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from bench import harness
from bench.captcha_images import FLAGS, loading, prepare, reduced

SEEDS = (3, 4, 5)  # none of which chose the settings of tuned
LIMITS = {"example": 2.0, "large-batch": 1.5, "loading": 20.0}
PATIENCE = 4.0  # times what tuned took, for large-batch
LONGEST_S = 600.0
TUNED_EPOCHS = 1.25
TURNS = (
    ("tuned", "example", "large-batch"),
    ("example", "tuned", "large-batch"),
    ("tuned", "large-batch", "example"),
)
EVALUATION = re.compile(
    r"^epoch (?P<epoch>[\d.]+).* exact (?:(?P<percent>[\d.]+)%|(?P<share>[\d.e-]+))"
)

# The example script's settings, and one after the other those of tuned.
PLAIN = {
    **{"lr": "1e-3", "clip-norm": 0, "schedule": "constant", "batch-size": 64},
    **{"precision": "fp32", "host-allocator": "system", "channels-last": False},
}
LADDER: dict[str, dict[str, Any]] = {
    "as the example script": {},
    "host allocator": {"host-allocator": "keep"},
    "channels last": {"channels-last": True},
    "bf16": {"precision": "bf16"},
    "batch 32": {"batch-size": 32},
}


@dataclass(frozen=True)
class Race:
    """One command until it reached the target, or was ended. `exact` is what its last evaluation
    measured.
    """

    side: str
    seed: int
    wall_s: float
    reached: bool
    exact: float
    epochs: float  # trained until that evaluation


@dataclass(frozen=True)
class Setup:
    folder: Path
    samples: int
    target: float
    device: str = "cpu"
    tuned_epochs: float = TUNED_EPOCHS

    @property
    def eval_samples(self) -> int:
        """As many as the example script takes."""
        return max(1, self.samples // 8)

    def words(self, side: str, seed: int) -> list[str]:
        own = ["--out", str(self.folder / f"out-{side}-{seed}"), "--seed", str(seed)]
        if side == "example":
            images = [str(self.folder / "png"), "--samples", str(self.samples)]
            flags = ["--batch-size", "64", "--workers", "0", "--epochs", "100"]
            flags += ["--device", self.device]
            return [sys.executable, "-m", "bench.captcha_example", *images, *flags, *own]
        epochs = ["--epochs", str(self.tuned_epochs)] if side == "tuned" else []
        return [*self.recipe("--preset", side, *epochs), *own]

    def recipe(self, *flags: str) -> list[str]:
        counts = {"samples": self.samples, "eval-samples": self.eval_samples}
        places = {"cache": self.folder / "cache", "device": self.device, "resume": "no"}
        fixed = [*FLAGS, *harness.flags(counts | places)]
        return [sys.executable, "-m", "recipes.captcha", *fixed, *flags]


def race(setup: Setup, side: str, seed: int, longest_s: float) -> Race:
    """Starts a command and reads what it says until an evaluation reaches the target, it ends, or
    its time is over.
    """
    begun = time.perf_counter()
    epochs, exact, lines = 0.0, 0.0, []
    with subprocess.Popen(
        setup.words(side, seed),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=_environment(),
        cwd=harness.ROOT,
    ) as process:
        timer = threading.Timer(longest_s, process.kill)
        timer.start()
        for line in process.stdout or ():
            lines.append(line)
            epochs, exact = evaluation_in(line) or (epochs, exact)
            if epochs and exact >= setup.target:
                break
        wall_s = time.perf_counter() - begun
        timer.cancel()
        process.kill()
    reached = bool(epochs) and exact >= setup.target
    if not reached and process.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"{side} ended with exit code {process.returncode}:\n{''.join(lines[-20:])}")
    return Race(side, seed, wall_s, reached, exact, epochs)


def evaluation_in(line: str) -> tuple[float, float] | None:
    """(epoch, share of exact matches) of a line of the example script's or the engine's; None of
    any other line.
    """
    match = EVALUATION.search(line)
    if match is None:
        return None
    exact = float(match["percent"]) / 100 if match["percent"] else float(match["share"])
    return float(match["epoch"]), exact


def _environment() -> dict[str, str]:
    """Nobody's allocator but the system's: what the recipe sets, it sets itself."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "BRIMFUL_"))
    }


def races(setup: Setup, seeds: tuple[int, ...]) -> list[Race]:
    run: list[Race] = []
    for number, seed in enumerate(seeds):
        of_seed: dict[str, Race] = {}
        for side in TURNS[number % len(TURNS)]:
            longest = PATIENCE * of_seed["tuned"].wall_s if side == "large-batch" else LONGEST_S
            of_seed[side] = race(setup, side, seed, longest)
            harness.say(f"  {shown(of_seed[side])}")
        run += of_seed.values()
    return run


def shown(result: Race) -> str:
    end = "reached" if result.reached else "ended at"
    return (
        f"{result.side}, seed {result.seed}: {end} {result.exact:.1%} after {result.wall_s:.1f} s "
        f"and {result.epochs:g} epochs"
    )


def ratios(run: list[Race], side: str) -> dict[str, Any]:
    """Wall time of `side` over that of tuned, seed by seed. A side that was ended before the target
    gives a lower bound; the median is None where tuned missed the target itself.
    """
    tuned = {result.seed: result for result in run if result.side == "tuned"}
    others = [result for result in run if result.side == side]
    each = harness.span([other.wall_s / tuned[other.seed].wall_s for other in others])
    if not all(result.reached for result in tuned.values()):
        each["median"] = None  # type: ignore[assignment]
    return {**each, "lower_bounds": sum(not other.reached for other in others)}


def ladder(setup: Setup, rounds: int, images: int) -> list[dict[str, Any]]:
    """Images per second as one setting after the other is changed; median over rounds."""
    rungs, settings = {}, PLAIN
    for name, more in LADDER.items():
        settings = {**settings, **more}
        rungs[name] = functools.partial(images_per_s, setup, settings, images)
    rows = harness.by_turns(rungs, rounds)
    rates = {name: [row[name] for row in rows] for name in rungs}
    return [
        {"setting": name, "images_per_s": statistics.median(of), "all": of}
        for name, of in rates.items()
    ]


def images_per_s(setup: Setup, settings: dict[str, Any], images: int) -> float:
    """Of a short training on so many images, by the engine's own count of training alone."""
    out = setup.folder / "out-ladder"
    ends = {"out": out, "epochs": 100, "max-steps": max(2, images // settings["batch-size"])}
    words = setup.recipe(*harness.flags(settings | ends))
    subprocess.run(words, check=True, capture_output=True, env=_environment(), cwd=harness.ROOT)
    return json.loads((out / "training_stats.json").read_text())["samples_per_second"]


def summary(
    setup: Setup, run: list[Race], rungs: list[dict[str, Any]], load: dict[str, Any]
) -> dict[str, Any]:
    against = {side: ratios(run, side) for side in ("example", "large-batch")}
    return {
        **harness.heading("wall time to a share of exact matches on held-out captchas of 4 digits"),
        "settings": {
            "samples": setup.samples,
            "eval_samples": setup.eval_samples,
            "target": setup.target,
            "limits": LIMITS,
            "tuned_epochs": TUNED_EPOCHS,
            "patience": PATIENCE,
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
            "commands": {side: command_of(setup, side) for side in TURNS[0]},
        },
        "wall_ratio": against,
        "images_needed": {side: images_needed(setup, run, side) for side in TURNS[0]},
        "wall_s": {
            side: [result.wall_s for result in run if result.side == side] for side in TURNS[0]
        },
        "ladder": rungs,
        "loading": load,
        "runs": [asdict(result) for result in run],
    }


def command_of(setup: Setup, side: str) -> str:
    """A command without the paths of this machine."""
    words = ["python", *setup.words(side, SEEDS[0])[1:]]
    return shlex.join(word.replace(str(setup.folder), "FOLDER") for word in words)


def images_needed(setup: Setup, run: list[Race], side: str) -> list[float]:
    """Of each seed that reached the target: images trained on until the evaluation that did. The
    example script evaluates at the end of each epoch, as its authors have it; tuned at the end of
    its 1.25."""
    reached = [result for result in run if result.side == side and result.reached]
    return [result.epochs * setup.samples for result in reached]


def passed(result: dict[str, Any]) -> bool:
    ratio = {**result["wall_ratio"], "loading": result["loading"]["ratio"]}
    return all(
        ratio[name]["median"] is not None and ratio[name]["median"] >= limit
        for name, limit in LIMITS.items()
    )


def report(result: dict[str, Any]) -> None:
    for side, ratio in result["wall_ratio"].items():
        print(f"against {side}: {ratio}, at least {LIMITS[side]:g} asked")
    for side, images in result["images_needed"].items():
        print(f"  {side} needed {', '.join(f'{count:,.0f}' for count in images) or 'more'} images")
    for rung in result["ladder"]:
        ratio = rung["images_per_s"] / result["ladder"][0]["images_per_s"]
        print(f"  {rung['setting']}: {rung['images_per_s']:.0f} images/s, {ratio:.2f} x")
    load = result["loading"]
    rates = f"array {load['array_per_s']:,.0f} images/s, PNG files {load['png_per_s']:,.0f}"
    print(f"loading: {rates}, {load['ratio']}, at least {LIMITS['loading']:g} asked")


def main(
    *,
    samples: Annotated[int, "training images; an eighth as many are held out"] = 8192,
    target: float = 0.9,
    seeds: Annotated[list[int] | None, f"default: {SEEDS}"] = None,
    rounds: Annotated[int, "of the ladder"] = 3,
    ladder_images: Annotated[int, "trained on for a rung"] = 2048,
    loading_images: int = 2048,
    out: harness.Out = harness.RESULTS,
) -> int:
    with tempfile.TemporaryDirectory(prefix="bench-captcha-") as temporary:
        folder = Path(temporary).absolute()
        setup = Setup(folder, samples, target)
        prepare(reduced(setup.samples, setup.eval_samples, folder), folder / "png")
        load = loading(folder, images=loading_images)
        run = races(setup, tuple(seeds or SEEDS))
        rungs = ladder(setup, rounds, ladder_images)
    result = summary(setup, run, rungs, load)
    report(result)
    harness.keep("captcha", result, out)
    return 0 if passed(result) else 1


if __name__ == "__main__":
    sys.exit(harness.run(main))
