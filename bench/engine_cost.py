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
show the microseconds best.
"""

import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import nn

from bench import harness
from bench.turns import Turns, calibrated, paired_ratios, seconds_of, spread
from brimful_train import (
    Arrays,
    BatchingConfig,
    CheckpointConfig,
    Config,
    OptimizerConfig,
    Task,
    fit,
)

LIMIT = 1.02  # of the hand-written loop, on a step of 10 ms
BLOCK_S = 0.1  # of one side, before the other has its turn
LR = 1e-3
STEPS_PER_EPOCH = 100
BLOCKS = 8
CLOCKS = ("cpu_s", "wall_s")


@dataclass(frozen=True)
class Case:
    """One comparison. `first` is "engine", or "hand" for the control."""

    name: str
    step_ms: float
    width: int
    norm: bool = False
    accumulation: int = 1
    clip_norm: float | None = None
    first: str = "engine"

    @property
    def steps(self) -> int:
        """In a block."""
        return max(1, round(BLOCK_S * 1e3 / self.step_ms))


CASES = [
    Case("10 ms", 10, 256),
    Case("2 ms", 2, 128),
    Case("50 ms", 50, 512),
    Case("10 ms, batch normalization", 10, 256, norm=True),
    Case("10 ms, accumulation 4", 10, 256, accumulation=4),
    Case("10 ms, clipping", 10, 256, clip_norm=1.0),
    Case("1 ms", 1, 16),
    Case("10 ms, control: by hand both", 10, 256, first="hand"),
    Case("1 ms, control: by hand both", 1, 16, first="hand"),
]


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
    batch: int,
    total_steps: int,
    at_loss: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """The loop that one would write without an engine; an update for each `next`. `batch` is that
    of one micro-batch.
    """
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, fused=True)
    step = 0
    while True:
        total = 0.0
        for rows_of_step in torch.randperm(len(x)).split(batch * case.accumulation):
            for rows in rows_of_step.split(batch):
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


def calibrated_batch(number: int) -> int:
    """Samples of a micro-batch, so that a step of that case by hand takes about `step_ms` of
    processor time.
    """
    torch.set_num_threads(1)
    case = CASES[number]

    def step_s(batch: int) -> float:
        x, y = make_data(case, batch * case.accumulation * 10)
        steps = by_hand(make_model(case), x, y, case, batch, 10_000)
        return seconds_of(lambda: next(steps))

    return calibrated(step_s, case.step_ms / 1e3, 32)


def measured(number: int, batch: int, rounds: int) -> dict:
    """One process's blocks: processor and wall seconds of a step, of the first side and of the
    hand-written loop.
    """
    torch.set_num_threads(1)
    case = CASES[number]
    x, y = make_data(case, batch * case.accumulation * STEPS_PER_EPOCH)
    warm_up = 3
    total_steps = (rounds + warm_up) * case.steps + 1
    # Of both: where its weights lie in memory is worth some percent of a step.
    model = make_model(case)
    second = by_hand(model, x, y, case, batch, total_steps)
    turns = Turns(
        lambda: next(second), steps=case.steps, calls_per_step=case.accumulation, warm_up=warm_up
    )
    if case.first == "hand":
        first = by_hand(model, x, y, case, batch, total_steps, turns)
        for _ in range(total_steps):
            next(first)
    else:
        fit_by_turns(case, model, batch, total_steps, (x, y), turns)
    return {
        clock: {
            "first": [block / case.steps for block in getattr(turns.first_times, clock)],
            "by_hand": [block / case.steps for block in getattr(turns.second_times, clock)],
        }
        for clock in CLOCKS
    }


def fit_by_turns(
    case: Case,
    model: nn.Module,
    batch: int,
    total_steps: int,
    data: tuple[torch.Tensor, torch.Tensor],
    turns: Callable[[], None],
    **settings: Any,
) -> None:
    """The engine's side."""

    def loss(model: nn.Module, given: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        turns()
        return nn.functional.cross_entropy(model(given[0]), given[1])

    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            out=Path(folder),
            epochs=total_steps,
            max_steps=total_steps,
            device="cpu",
            batch=BatchingConfig(micro_batch=batch, accumulation=case.accumulation),
            optimizer=OptimizerConfig(lr=LR),
            checkpoints=CheckpointConfig(every_epochs=None),
            clip_norm=case.clip_norm,
            **settings,
        )
        fit(Task("bench", model, loss, Arrays(*data)), config)


def summary(case: Case, batch: int, processes: list[dict]) -> dict:
    """Ratios over the blocks of all processes, and each process's own median."""
    figures: dict = {"case": asdict(case), "steps_per_block": case.steps, "micro_batch": batch}
    for clock in CLOCKS:
        blocks = [process[clock] for process in processes]
        ratios = [paired_ratios(of["first"], of["by_hand"]) for of in blocks]
        every = [ratio for of_process in ratios for ratio in of_process]
        first, hand = ([s for of in blocks for s in of[side]] for side in ("first", "by_hand"))
        by_hand_s = statistics.median(hand)
        figures["blocks"] = len(every)
        figures[clock] = {
            "ratio": spread(every),
            "ratio_of_each_process": [statistics.median(of_process) for of_process in ratios],
            "ratio_of_means": statistics.mean(first) / statistics.mean(hand),
            "step_by_hand": by_hand_s,
            "added_us": (statistics.median(every) - 1) * by_hand_s * 1e6,
        }
    return figures


def compare(number: int, processes: int, rounds: int) -> dict:
    batch = harness.apart("bench.engine_cost", "calibrated_batch", number)
    runs = [
        harness.apart("bench.engine_cost", "measured", number, batch, rounds)
        for _ in range(processes)
    ]
    return summary(CASES[number], batch, runs)


def sentence(figures: dict) -> str:
    cpu, wall = figures["cpu_s"], figures["wall_s"]

    def written(ratio: dict) -> str:
        return f"{ratio['median']:.4f} ({ratio['p10']:.3f} to {ratio['p90']:.3f})"

    return (
        f"{figures['case']['name']:32} batch {figures['micro_batch']:5}  by hand "
        f"{cpu['step_by_hand'] * 1e3:6.2f} ms  "
        f"processor {written(cpu['ratio'])}, {cpu['added_us']:+.0f} µs  wall "
        f"{written(wall['ratio'])}"
    )


def holds(cases: list[dict]) -> bool:
    """Whether steps of 10 ms are within the limit, by both clocks."""
    return all(
        figures[clock]["ratio"]["median"] <= LIMIT
        for figures in cases
        for clock in CLOCKS
        if figures["case"]["step_ms"] == 10
    )


def main(
    *,
    processes: int = 5,
    rounds: Annotated[int, "of a block of each side, in each process"] = 40,
    only: Annotated[list[str] | None, f"cases: {', '.join(case.name for case in CASES)}"] = None,
    out: harness.Out = harness.RESULTS,
) -> int:
    numbers = {case.name: number for number, case in enumerate(CASES)}
    cases = []
    for number in harness.choose(numbers, only).values():
        cases.append(compare(number, processes, rounds))
        print(sentence(cases[-1]), flush=True)
    what = "seconds of a step of brimful_train.fit over those of a loop by hand, by turns"
    settings = {"processes": processes, "rounds": rounds, "threads": 1, "block_s": BLOCK_S}
    settings |= {"limit": LIMIT, "by_hand_checks_nan": True}
    harness.keep(
        "engine_cost", {**harness.heading(what), "settings": settings, "cases": cases}, out
    )
    return 0 if holds(cases) else 1


if __name__ == "__main__":
    sys.exit(harness.run(main))
