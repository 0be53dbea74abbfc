"""Trainings killed with SIGKILL at random moments and started again: `python -m bench.kills`.

A small training (dropout, batch normalization, noise from Python's and NumPy's generators, two
micro-batches a step, a checkpoint every 3 steps) runs in a process of its own, is killed one to
three times, and then left alone to its end. What it ends with (weights, buffers, optimizer, random
states, counts, place in the data: all that a later step depends on) is compared bit for bit with
the same training that was never killed. The moments are drawn: after a number of micro-batches,
after a time, and while a checkpoint is being written. A control forgets the random state on the
way: the comparison must see that.
"""

import json
import mmap
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy
import torch
from torch import nn

from bench import harness
from brimful_train import (
    Arrays,
    BatchingConfig,
    CheckpointConfig,
    Config,
    OptimizerConfig,
    Task,
    fit,
)
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.training_state import TrainingState

EPOCHS, SAMPLES, MICRO_BATCH, ACCUMULATION = 6, 150, 8, 2
STEPS = EPOCHS * -(-SAMPLES // (MICRO_BATCH * ACCUMULATION))
# Of a checkpoint; the rest is times and settings.
COMPARED = ("model", "optimizer", "random", "counts", "position")
KINDS = ("step", "time", "writing")
LIFE_S = 120.0  # assumed: a process that takes longer hangs


def training(folder: Path, begun: Callable[[], None] = lambda: None) -> None:
    """To its end, from the newest checkpoint in `folder`. `begun` hears of each micro-batch."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 4)
    )
    generator = torch.Generator().manual_seed(1)
    x, y = (
        torch.randn(SAMPLES, 16, generator=generator),
        torch.randint(0, 4, (SAMPLES,), generator=generator),
    )

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        begun()
        noise = 0.1 * float(numpy.random.normal()) + 0.1 * random.gauss(0, 1)
        return nn.functional.cross_entropy(model(batch[0] + noise), batch[1])

    config = Config(
        out=folder,
        epochs=EPOCHS,
        device="cpu",
        batch=BatchingConfig(micro_batch=MICRO_BATCH, accumulation=ACCUMULATION),
        optimizer=OptimizerConfig(lr=1e-2),
        checkpoints=CheckpointConfig(every_epochs=None, every_steps=3),
        log_every_s=1e6,
    )
    fit(Task("kills", model, loss, Arrays(x, y)), config)


class Life:
    """A process that trains in `folder`: a fork, which has torch already where a process anew takes
    seconds to load it.
    """

    def __init__(self, folder: Path, work: Callable[[Path, Callable[[], None]], None] = training):
        self._shared = mmap.mmap(-1, 8)
        self.folder = folder
        self.ended: int | None = None  # its exit code, negative for a signal
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                silent = os.open(os.devnull, os.O_WRONLY)
                for stream in (1, 2):
                    os.dup2(silent, stream)
                work(folder, self._count)
                code = 0
            finally:
                os._exit(code)

    def _count(self) -> None:
        self._shared[:8] = (self.micro_batches + 1).to_bytes(8, "little")

    @property
    def micro_batches(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    def is_over(self) -> bool:
        if self.ended is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.ended = os.waitstatus_to_exitcode(status)
        return self.ended is not None

    def until(self, holds: Callable[[], bool]) -> bool:
        """Waits; False where the process ended before. Kills and names one that does neither."""
        ends = time.monotonic() + LIFE_S
        while not holds():
            if self.is_over():
                return False
            if time.monotonic() > ends:
                self.kill()
                raise TimeoutError(f"the training in {self.folder} hangs")
            time.sleep(0.0002)
        return True

    def kill(self) -> bool:
        """Whether it was alive until then."""
        if not self.is_over():
            os.kill(self.pid, signal.SIGKILL)
            self.ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.ended == -signal.SIGKILL

    def finish(self) -> None:
        self.until(lambda: False)
        if self.ended:
            raise RuntimeError(f"the training in {self.folder} ended with {self.ended}")


def half_written(folder: Path) -> bool:
    return any((folder / "checkpoints").glob(".writing-*"))


def newest_step(folder: Path) -> int:
    return max(
        (int(path.name.split("-")[1]) for path in (folder / "checkpoints").glob("step-*")),
        default=0,
    )


def wait_for_the_moment(kind: str, life: Life, draw: random.Random, whole_s: float) -> bool:
    """Until the moment drawn for a kill; False where the training ended before."""
    if kind == "time":
        ends = time.monotonic() + draw.random() * whole_s
        return life.until(lambda: time.monotonic() > ends)
    if kind == "step":
        target = draw.randrange(1, STEPS * ACCUMULATION)
        # Assumed: as long as a step, so that any part of one can be hit.
        pause_s = draw.random() * 0.003
        return life.until(lambda: life.micro_batches >= target) and _sleep(pause_s)
    until, pause_s = newest_step(life.folder) + draw.randrange(0, STEPS // 2), draw.random() * 0.006
    reached = life.until(lambda: newest_step(life.folder) >= until and half_written(life.folder))
    return reached and _sleep(pause_s)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def one_run(
    number: int, draw: random.Random, folder: Path, whole_s: float, expected: dict[str, Any]
) -> dict[str, Any]:
    """Killed once at the least: a moment that came too late is drawn again, in a training begun
    anew. Of each kill: how its moment was chosen, how many micro-batches the process had begun, the
    step of the newest whole checkpoint (0: none yet), and whether one was being written.
    """
    kills: list[dict[str, Any]] = []
    attempt = 0
    while not kills:
        attempt += 1
        place = folder / f"run-{number}-{attempt}"
        for _ in range(draw.randrange(1, 4)):
            kind, life = draw.choice(KINDS), Life(place)
            if not (wait_for_the_moment(kind, life, draw, whole_s) and life.kill()):
                if life.ended:
                    raise RuntimeError(f"the training in {place} ended with {life.ended}")
                break
            met = {"checkpoint_step": newest_step(place), "half_written": half_written(place)}
            kills.append({"kind": kind, "micro_batches": life.micro_batches, **met})
    Life(place).finish()
    return {"number": number, "kills": kills, "different": different(last(place), expected)}


def last(folder: Path) -> dict[str, Any]:
    """What the training ended with."""
    newest = Checkpoints(folder / "checkpoints", CheckpointConfig(), lambda sentence: None).newest()
    if newest is None or newest.step != STEPS:
        raise RuntimeError(f"the training in {folder} has no checkpoint of its end")
    return {name: newest.state[name] for name in COMPARED}


def different(ours: Any, theirs: Any, name: str = "") -> list[str]:
    """Names of what is not the same, tensors bit for bit."""
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape
        same = (
            alike and ours.contiguous().numpy().tobytes() == theirs.contiguous().numpy().tobytes()
        )
        return [] if same else [name]
    if type(ours) is not type(theirs):
        return [name]
    if isinstance(ours, dict):
        if ours.keys() != theirs.keys():
            return [name]
        return [
            part
            for key in ours
            for part in different(ours[key], theirs[key], f"{name}.{key}".lstrip("."))
        ]
    if isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs):
            return [name]
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [part for number, (a, b) in pairs for part in different(a, b, f"{name}.{number}")]
    return [] if ours == theirs else [name]


def forgetful(folder: Path, begun: Callable[[], None]) -> None:
    """For the control: goes on from a checkpoint without its random state."""
    TrainingState._adopt_randomness = lambda self, states: None  # type: ignore[method-assign]
    training(folder, begun)


def control(folder: Path, expected: dict[str, Any]) -> list[str]:
    """What the comparison says of a training that went on without its random state."""
    life = Life(folder)
    if not (life.until(lambda: newest_step(folder) >= STEPS // 2) and life.kill()):
        raise RuntimeError("the control ended before it was killed")
    Life(folder, forgetful).finish()
    return different(last(folder), expected)


def work(numbers: list[int], seed: int) -> list[dict[str, Any]]:
    """Runs of one worker, and its control."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begun = time.monotonic()
        Life(folder / "whole").finish()
        whole_s, expected = time.monotonic() - begun, last(folder / "whole")
        rows = [{"whole_s": whole_s, "control": control(folder / "control", expected)}]
        for number in numbers:
            draw = random.Random(f"{seed}/{number}")
            rows.append(one_run(number, draw, folder, whole_s, expected))
        return rows


def in_workers(runs: int, workers: int, seed: int) -> list[dict[str, Any]]:
    """Every worker's rows. A worker is a process that has never trained, so that its forks are
    clean.
    """
    started = [
        subprocess.Popen(
            harness.words_apart("bench.kills", "work", [*range(worker, runs, workers)], seed),
            cwd=harness.ROOT,
            env=harness.environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for worker in range(workers)
    ]
    output = [process.communicate()[0] for process in started]
    codes = [process.returncode for process in started]
    if any(codes):
        raise RuntimeError(f"workers ended with {codes}")
    return [row for words in output for row in json.loads(words)]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    runs = sorted((row for row in rows if "kills" in row), key=lambda row: row["number"])
    controls = [row for row in rows if "control" in row]
    kills = [kill for run in runs for kill in run["kills"]]
    return {
        "runs": len(runs),
        "bitwise_equal": sum(not run["different"] for run in runs),
        "kills": len(kills),
        "kills_by_kind": {kind: sum(kill["kind"] == kind for kill in kills) for kind in KINDS},
        "kills_while_a_checkpoint_was_written": sum(kill["half_written"] for kill in kills),
        "kills_before_the_first_checkpoint": sum(kill["checkpoint_step"] == 0 for kill in kills),
        "checkpoint_steps_gone_on_from": sorted({kill["checkpoint_step"] for kill in kills}),
        "run_left_alone_s": statistics.median(row["whole_s"] for row in controls),
        "controls_seen_to_differ": f"{sum(bool(row['control']) for row in controls)} of "
        f"{len(controls)}",
    }


def main(
    *,
    runs: int = 100,
    workers: Annotated[int, "at a time"] = 2,
    seed: Annotated[int | None, "of the moments (else drawn, and printed)"] = None,
    out: harness.Out = harness.RESULTS,
) -> int:
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    print(f"seed {seed}", flush=True)
    rows = in_workers(runs, workers, seed)
    figures = summary(rows)
    print(
        f"{figures['bitwise_equal']} of {figures['runs']} runs bitwise equal, "
        f"{figures['kills']} kills {figures['kills_by_kind']}, "
        f"{figures['kills_while_a_checkpoint_was_written']} of them in a half-written checkpoint; "
        f"controls seen to differ: {figures['controls_seen_to_differ']}"
    )
    what = "trainings killed at random moments and gone on with, bit for bit against one left alone"
    settings = {"seed": seed, "workers": workers, "steps": STEPS, "micro_batch": MICRO_BATCH}
    settings |= {"accumulation": ACCUMULATION, "samples": SAMPLES, "checkpoint_every_steps": 3}
    result = {**harness.heading(what), "settings": {**settings, "compared": COMPARED}, **figures}
    harness.keep("kills", result, out, rows=rows)
    differing, controls = figures["controls_seen_to_differ"].split(" of ")
    return 0 if figures["bitwise_equal"] == figures["runs"] and differing == controls else 1


if __name__ == "__main__":
    sys.exit(harness.run(main))
