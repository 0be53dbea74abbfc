"""What the engine's tests train: a model that keeps books of its samples, a small network, memory
that runs out on demand.
"""

import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from brimful_train import (
    Arrays,
    BatchingConfig,
    CheckpointConfig,
    Config,
    OptimizerConfig,
    ScheduleConfig,
    Sum,
    Task,
)
from tests.conftest import WITHOUT_DYNAMO

ROOT = Path(__file__).parents[2]
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB (injected by a test)"


class Ledger(nn.Module):
    """One weight for each sample. Under plain SGD at learning rate 1 a weight ends at minus the
    sum, over the updates its sample was in, of its share of that update: -1 / (samples of the
    update) for each time it was met."""

    def __init__(self, samples: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(samples, dtype=torch.float64))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.weight[index]


class _FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return gradient, None


class Faults:
    """Memory that runs out at planned calls: `plan` holds (place, number of the call at that
    place), each failing once.

    `capacity`: more samples at once than this fail always, in the place given by `capacity_place`.
    """

    def __init__(self, plan=(), capacity: int | None = None, capacity_place: str = "forward"):
        self.plan = set(plan)
        self.capacity, self.capacity_place = capacity, capacity_place
        self.calls = {"forward": 0, "backward": 0, "update": 0, "eval": 0}
        self.hit: list[tuple[str, int]] = []

    def due(self, place: str, samples: int | None = None) -> bool:
        call = (place, self.calls[place])
        self.calls[place] += 1
        limit = self.capacity if place == self.capacity_place else None
        fails = call in self.plan or (samples is not None and limit is not None and samples > limit)
        self.plan.discard(call)
        self.hit += [call] * fails
        return fails

    def fail_if_due(self, place: str, samples: int | None = None) -> None:
        if self.due(place, samples):
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    def in_the_update(self):
        """While this is open, fused kernels fail where that is planned; what comes before the
        kernel was already done.
        """
        return failing_kernels(("_fused_sgd_", "_fused_adamw_"), lambda: self.fail_if_due("update"))


@contextlib.contextmanager
def failing_kernels(names, fail_if_due: Callable[[], None]):
    """While this is open, `fail_if_due` is called before torch's functions of these names."""

    def failing(kernel):
        return lambda *args, **kwargs: (fail_if_due(), kernel(*args, **kwargs))[1]

    with contextlib.ExitStack() as patches:
        for name in names:
            patches.enter_context(mock.patch.object(torch, name, failing(getattr(torch, name))))
        yield


def ledger_task(
    samples: int,
    faults: Faults | None = None,
    *,
    eval_samples: int = 0,
    as_sum: bool = False,
    decomposes=True,
) -> Task:
    faults = faults or Faults()

    def loss(model, batch):
        (index,) = batch
        faults.fail_if_due("forward", len(index))
        values = _FailingBackward.apply(model(index), faults.due("backward", len(index)))
        return Sum(values.sum(), torch.tensor(float(len(index)))) if as_sum else values.mean()

    def measure(model, batch):
        (index,) = batch
        faults.fail_if_due("eval", len(index))
        return {"loss": Sum(model(index).sum(), len(index)), "seen": Sum(float(index.sum()), 1)}

    index = torch.arange(samples)
    evaluated = Arrays(index[:eval_samples]) if eval_samples else None
    return Task(
        "ledger", Ledger(samples), loss, Arrays(index), evaluated, measure, decomposes=decomposes
    )


def ledger_config(out: Path, **changes) -> Config:
    settings = {
        "epochs": 1,
        "optimizer": OptimizerConfig("sgd", lr=1.0, momentum=0.0, weight_decay=0.0),
        "schedule": ScheduleConfig("constant"),
        "checkpoints": CheckpointConfig(every_epochs=None),
        "device": "cpu",
        "log_every_s": 1e6,
    }
    return Config(out=out, **{**settings, **changes})


def shares(task: Task) -> torch.Tensor:
    """For each sample, the sum over the updates it was in of 1 / samples of that update."""
    return -task.model.weight.detach()


def network(seed: int = 0, dropout: float = 0.0, norm: bool = False) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16),
        *([nn.BatchNorm1d(16)] if norm else []),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(16, 3),
    )


def network_task(
    samples: int = 70, faults: Faults | None = None, eval_samples: int = 20, **options
) -> Task:
    faults = faults or Faults()
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(samples, 6, generator=generator)
    y = (x @ torch.randn(6, 3, generator=generator)).argmax(1)

    def loss(model, batch):
        faults.fail_if_due("forward", len(batch[0]))
        out = _FailingBackward.apply(model(batch[0]), faults.due("backward", len(batch[0])))
        return nn.functional.cross_entropy(out, batch[1])

    def measure(model, batch):
        faults.fail_if_due("eval", len(batch[0]))
        out = model(batch[0])
        return {
            "loss": Sum(nn.functional.cross_entropy(out, batch[1], reduction="sum"), len(batch[1])),
            "accuracy": Sum((out.argmax(1) == batch[1]).sum(), len(batch[1])),
        }

    evaluated = Arrays(x[:eval_samples], y[:eval_samples]) if eval_samples else None
    return Task("network", network(**options), loss, Arrays(x, y), evaluated, measure)


def network_config(out: Path, **changes) -> Config:
    settings = {
        "epochs": 2,
        "batch": BatchingConfig(micro_batch=8, accumulation=2),
        "optimizer": OptimizerConfig("adamw", lr=1e-2),
        "checkpoints": CheckpointConfig(every_epochs=1),
        "device": "cpu",
        "log_every_s": 1e6,
    }
    return Config(out=out, **{**settings, **changes})


def statistics(folder: Path) -> dict:
    return json.loads((folder / "training_stats.json").read_text())


def log_rows(folder: Path, event: str) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [row for row in rows if row["event"] == event]


def checkpoint_steps(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (folder / "checkpoints").glob("step-*"))


def weights(task: Task) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in task.model.parameters()]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def farthest(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


# --- several processes ---


def environment(rank: int = 0, size: int = 1) -> dict[str, str]:
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}:{WITHOUT_DYNAMO}"}
    if size > 1:
        variables |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
        variables |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(size))
    return {**os.environ, **variables}


def started(function: Callable, words: Path, *argv: object, alone: bool = False) -> BaseProcess:
    """A process that calls `function`, with its output in `words`.out and .err.

    It is a fork of this one, which has torch already: loading it takes a process of its own some
    seconds. One of its own it is where it is to share nothing (`alone`), or where there is an
    accelerator: autograd then has threads that a fork does not get.
    """
    way = "spawn" if alone or torch.accelerator.is_available() else "fork"
    process = multiprocessing.get_context(way).Process(
        target=_calling, args=(words, function, argv)
    )
    process.start()
    return process


def _calling(words: Path, function: Callable, argv: tuple) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{words}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    torch.set_num_threads(1)  # threads of OpenMP do not come along
    function(*argv)


def results_of_ranks(
    function: Callable, folder: Path, *argv: object, timeout_s: float = 200
) -> list[Any]:
    """What `function` returns on each of two ranks, none of which may fail."""
    ended = on_ranks(2, function, folder, *argv, timeout_s=timeout_s)
    assert [code for code, _, _ in ended] == [0, 0], ended
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def on_ranks(
    size: int, function: Callable, folder: Path, *argv: object, timeout_s: float = 200
) -> list[tuple[int | None, str, str]]:
    """Exit code, output and errors of each rank of a group of `size` processes, in which `function`
    is called.
    """
    (folder / "store").unlink(missing_ok=True)
    words = [folder / f"rank-{rank}" for rank in range(size)]
    processes = [
        started(_as_rank, words[rank], rank, size, folder, function, argv) for rank in range(size)
    ]
    ends = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, ends - time.monotonic()))
    for process in processes:
        process.kill()  # one that is still there hangs, and its exit code says so
        process.join()
    return [
        (process.exitcode, *(Path(f"{of}.{name}").read_text() for name in ("out", "err")))
        for process, of in zip(processes, words, strict=True)
    ]


def _as_rank(rank: int, size: int, folder: Path, function: Callable, argv: tuple) -> None:
    os.environ |= environment(rank, size)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=size
    )
    result = function(*(str(a) for a in argv))
    (folder / f"rank-{rank}.json").write_text(json.dumps(result))


class Stopped(BaseException):
    """The process is no more; what it had not written is lost."""


def stopping(task: Task, at_call: int) -> Task:
    """`task`, whose loss ends the training at its call of this number."""
    calls = itertools.count()

    def counted(model, batch):
        if next(calls) == at_call:
            raise Stopped
        return task.loss(model, batch)

    return dataclasses.replace(task, loss=counted)
