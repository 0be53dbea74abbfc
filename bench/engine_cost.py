"""What the engine costs beside the training itself: `python -m bench.engine_cost`.

`brimful_train.fit` against a loop of plain PyTorch, written by hand, that does the same work: the
same model, data in memory, random batches of the same size, fused AdamW (no decay of biases and
norms), a cosine learning rate, the loss summed for a line of log at each epoch, and a look at each
loss whether it is NaN (as the engine does on a CPU). Neither evaluates or writes checkpoints on the
way. Both take turns in one process (bench/turns.py), in processes of their own several times, with
one thread. Result: the ratio of seconds per step, of processor time and of wall time: median, and
the middle 80 %, over all pairs of blocks; and each process's own median, as where memory lies
differs from process to process. Beside it stands a control, the hand-written loop against
itself: what the method itself would call a cost. Steps of 1 ms, the smallest that this model has,
show the microseconds best. What the gradient noise scale costs, of one step in 50, is seen best
where each step is looked at.

Beside that, what a step costs where the network costs nothing, at 32 to 4,096 samples: what the
engine does for a step must not grow with its samples.
"""

import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import torch
from torch import nn

from bench import harness
from bench.turns import CLOCKS, Turns, paired_ratios
from brimful_train import (
    Arrays,
    BatchingConfig,
    CheckpointConfig,
    Config,
    OptimizerConfig,
    Task,
    fit,
)
from brimful_train.step import gradient_noise

LIMIT = 1.02  # of the hand-written loop, on a step of 10 ms
NOISE_LIMIT = 0.01  # of a step of 10 ms, for the gradient noise scale
EMPTY_LIMIT_S = 0.5e-3  # of processor time, for a step whose network costs nothing
EMPTY_BATCHES = (32, 256, 1024, 4096)
BLOCK_S = 0.1  # of one side, before the other has its turn
LR = 1e-3
STEPS_PER_EPOCH = 100
BLOCKS = 8
WARM_UP = 3  # rounds


@dataclass(frozen=True)
class Case:
    """One comparison. `first` is "engine", or "hand" for the control. A step of `batch` samples a
    micro-batch took `step_ms` of processor time by hand on a core of an AMD EPYC. `looks`: the
    gradient noise scale is read of each step in this way, and not of one in 50.
    """

    step_ms: float
    width: int
    batch: int
    norm: bool = False
    accumulation: int = 1
    clip_norm: float | None = None
    first: str = "engine"
    looks: str | None = None

    @property
    def steps(self) -> int:
        """In a block."""
        return max(1, round(BLOCK_S * 1e3 / self.step_ms))

    @property
    def passes(self) -> int:
        """Of a step by the engine."""
        return 2 if self.looks == "split" else self.accumulation


CASES = {
    "10 ms": Case(10, 256, 204),
    "2 ms": Case(2, 128, 104),
    "50 ms": Case(50, 512, 340),
    "10 ms, batch normalization": Case(10, 256, 204, norm=True),
    "10 ms, accumulation 4": Case(10, 256, 36, accumulation=4),
    "10 ms, clipping": Case(10, 256, 204, clip_norm=1.0),
    "10 ms, accumulation 4, noise scale of each step": Case(
        10, 256, 36, accumulation=4, looks="auto"
    ),
    "10 ms, noise scale of each step by halves": Case(10, 256, 204, looks="split"),
    "1 ms": Case(1, 16, 216),
    "10 ms, control: by hand both": Case(10, 256, 204, first="hand"),
    "1 ms, control: by hand both": Case(1, 16, 216, first="hand"),
}


def make_model(case: Case) -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d if case.norm else nn.LayerNorm
    layers = [
        part
        for _ in range(BLOCKS)
        for part in (nn.Linear(case.width, case.width), norm(case.width), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Linear(case.width, 10))


def make_data(case: Case, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, case.width, generator=generator), torch.randint(
        0, 10, (samples,), generator=generator
    )


def checked(loss: torch.Tensor, step: int) -> float:
    """The loss as a number. Raises ArithmeticError where it is none, as the engine would notice."""
    value = loss.item()
    if not math.isfinite(value):
        raise ArithmeticError(f"the loss of step {step} is {value}")
    return value


def by_hand(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    case: Case,
    total_steps: int,
    at_loss: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """The loop that one would write without an engine; an update for each `next`."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, fused=True)
    step = 0
    while True:
        total = 0.0
        for rows_of_step in torch.randperm(len(x)).split(case.batch * case.accumulation):
            for rows in rows_of_step.split(case.batch):
                images, labels = x[rows], y[rows]
                at_loss()
                loss = nn.functional.cross_entropy(model(images), labels)
                (loss / case.accumulation if case.accumulation > 1 else loss).backward()
                total += checked(loss, step) * len(rows)
            if case.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
            step += 1
            lr = LR * (1 + math.cos(math.pi * min(1.0, step / total_steps))) / 2
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield
        harness.say(f"step {step}  loss {total / len(x):.4f}  lr {lr:.3g}")


def by_engine(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    case: Case,
    total_steps: int,
    at_loss: Callable[[], None],
) -> None:
    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        at_loss()
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            out=Path(folder),
            epochs=total_steps,
            max_steps=total_steps,
            device="cpu",
            batch=BatchingConfig(micro_batch=case.batch, accumulation=case.accumulation),
            optimizer=OptimizerConfig(lr=LR),
            checkpoints=CheckpointConfig(every_epochs=None),
            clip_norm=case.clip_norm,
            noise_scale=case.looks or "auto",
        )
        every = 1 if case.looks else gradient_noise.EVERY
        with mock.patch.object(gradient_noise, "EVERY", every):
            fit(Task("bench", model, loss, Arrays(x, y)), config)


def measured(name: str, rounds: int) -> dict[str, dict[str, list[float]]]:
    """One process's blocks, by each clock: their ratios, and seconds of a step by hand."""
    torch.set_num_threads(1)
    case = CASES[name]
    x, y = make_data(case, case.batch * case.accumulation * STEPS_PER_EPOCH)
    total_steps = (rounds + WARM_UP) * case.steps + 1
    # Of both: where its weights lie in memory is worth some percent of a step.
    model = make_model(case)
    second = by_hand(model, x, y, case, total_steps)
    turns = Turns(lambda: next(second), case.steps, case.passes, WARM_UP)
    if case.first == "hand":
        for _ in itertools.islice(by_hand(model, x, y, case, total_steps, turns), total_steps):
            pass
    else:
        by_engine(model, x, y, case, total_steps, turns)
    return {
        clock: {
            "ratios": paired_ratios(turns.first_times[clock], turns.second_times[clock]),
            "by_hand": [seconds / case.steps for seconds in turns.second_times[clock]],
        }
        for clock in CLOCKS
    }


def empty_steps(batch: int, steps: int) -> dict[str, list[float]]:
    """Seconds from one forward pass to the next, by each clock, where the network has one number
    and does not look at its `batch` samples."""
    torch.set_num_threads(1)
    at: dict[str, list[float]] = {"cpu_s": [], "wall_s": []}

    def loss(model: nn.Module, _: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        at["cpu_s"].append(time.process_time())
        at["wall_s"].append(time.perf_counter())
        return next(model.parameters()).sum()

    data = Arrays(torch.zeros(batch * STEPS_PER_EPOCH), torch.zeros(batch * STEPS_PER_EPOCH))
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            out=Path(folder),
            epochs=steps,
            max_steps=steps + WARM_UP,
            device="cpu",
            batch=BatchingConfig(micro_batch=batch),
            checkpoints=CheckpointConfig(every_epochs=None),
        )
        fit(Task("empty", nn.Linear(1, 1, bias=False), loss, data), config)
    return {
        clock: [after - before for before, after in itertools.pairwise(times[WARM_UP:])]
        for clock, times in at.items()
    }


def empty_summary(batch: int, steps: int) -> dict[str, Any]:
    times = harness.apart("bench.engine_cost", "empty_steps", batch, steps)
    figures = {"samples": batch} | {clock: harness.spread(times[clock]) for clock in times}
    by_processor, by_clock = (figures[clock]["median"] * 1e3 for clock in ("cpu_s", "wall_s"))
    print(
        f"{batch:5,} samples, no network    {by_processor:.3f} ms of processor time, "
        f"{by_clock:.3f} ms a step",
        flush=True,
    )
    return figures


def summary(name: str, processes: list[dict[str, dict[str, list[float]]]]) -> dict[str, Any]:
    """Ratios over the blocks of all processes, and each process's own median."""
    figures: dict[str, Any] = {"name": name, "case": asdict(CASES[name])}
    for clock in CLOCKS:
        ratios = [process[clock]["ratios"] for process in processes]
        by_hand_s = statistics.median(s for process in processes for s in process[clock]["by_hand"])
        every = [ratio for of_process in ratios for ratio in of_process]
        figures["blocks"] = len(every)
        figures[clock] = {
            "ratio": harness.spread(every),
            "ratio_of_each_process": [statistics.median(of_process) for of_process in ratios],
            "step_by_hand": by_hand_s,
            "added_us": (statistics.median(every) - 1) * by_hand_s * 1e6,
        }
    return figures


def sentence(figures: dict[str, Any]) -> str:
    cpu, wall = figures["cpu_s"], figures["wall_s"]
    by_processor, by_clock = (
        f"{ratio['median']:.4f} ({ratio['p10']:.3f} to {ratio['p90']:.3f})"
        for ratio in (cpu["ratio"], wall["ratio"])
    )
    return (
        f"{figures['name']:32} by hand {cpu['step_by_hand'] * 1e3:6.2f} ms  processor "
        f"{by_processor}, {cpu['added_us']:+.0f} µs  wall {by_clock}"
    )


def holds(cases: list[dict]) -> bool:
    """Whether steps of 10 ms are within their limits, by both clocks."""
    looked_at = LIMIT + NOISE_LIMIT * gradient_noise.EVERY
    return all(
        figures[clock]["ratio"]["median"] <= (looked_at if figures["case"]["looks"] else LIMIT)
        for figures in cases
        for clock in CLOCKS
        if figures["case"]["step_ms"] == 10
    )


def main(
    *,
    processes: int = 5,
    rounds: Annotated[int, "of a block of each side, in each process"] = 40,
    empty_steps: Annotated[int, "of each number of samples, where the network costs nothing"] = 500,
    only: Annotated[list[str] | None, f"cases: {', '.join(CASES)}"] = None,
    out: harness.Out = harness.RESULTS,
) -> int:
    empty = [empty_summary(batch, empty_steps) for batch in EMPTY_BATCHES]
    cases = []
    for name in harness.choose(CASES, only):
        runs = [
            harness.apart("bench.engine_cost", "measured", name, rounds) for _ in range(processes)
        ]
        cases.append(summary(name, runs))
        print(sentence(cases[-1]), flush=True)
    what = "seconds of a step of brimful_train.fit over those of a loop by hand, by turns"
    settings = {"processes": processes, "rounds": rounds, "threads": 1, "block_s": BLOCK_S}
    settings |= {"limit": LIMIT, "by_hand_checks_nan": True, "empty_limit_s": EMPTY_LIMIT_S}
    settings["noise_limit_of_one_step_in"] = {str(gradient_noise.EVERY): NOISE_LIMIT}
    harness.keep(
        "engine_cost",
        {**harness.heading(what), "settings": settings, "cases": cases, "empty": empty},
        out,
    )
    quick = all(figures["cpu_s"]["median"] <= EMPTY_LIMIT_S for figures in empty)
    return 0 if holds(cases) and quick else 1


if __name__ == "__main__":
    sys.exit(harness.run(main))
