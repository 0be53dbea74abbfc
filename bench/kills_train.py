"""What `bench.kills` kills: a training of a few milliseconds a step, by the engine, or by a loop
without torch or with it, on one rank or several; a loader's worker makes the batches of the engine
and of one rank. It keeps numbered checkpoints, of which none is ever written twice where nothing is
lost, and a log to which all of its lives append.

The engine goes on from its newest checkpoint by itself, a loop behind `--resume last`; else it
begins anew, as most scripts do. `--forget`: the engine goes on without its random state.
"""

import contextlib
import hashlib
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STEPS, CHECKPOINT_EVERY, STEP_S = 120, 4, 0.004
CHECKPOINTS, LOG = "checkpoints", "log.txt"
SAMPLES, MICRO_BATCH, ACCUMULATION, EPOCHS = 150, 8, 2, 12  # of the engine, which make 120 steps
# Of an engine's checkpoint: all that a later step depends on. The rest is times and settings.
COMPARED = ("model", "optimizer", "random", "counts", "position")
_RANK, _RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def newest(folder: Path) -> tuple[int, Any]:
    """(steps, state) of the newest checkpoint; step 0 where there is none. Of the engine's tensors
    the hashes of their files.
    """
    paths = sorted([*folder.glob("step-*.json"), *folder.glob("step-*/state.json")])
    content = json.loads(paths[-1].read_text()) if paths else (0, [])
    if isinstance(content, dict):
        files = [paths[-1].with_name(name).read_bytes() for name in content["files"]]
        state = {name: content["tree"][name] for name in COMPARED}
        return content["step"], {**state, "files": [hashlib.sha256(f).hexdigest() for f in files]}
    step, state = content
    return step, state


def say(event: str, step: int) -> None:
    """One line of the log, whole, behind those of all other processes."""
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, f"{event} {os.getpid()} {step}\n".encode())
    os.close(log)


def keep(step: int, state: list[float]) -> None:
    Path(CHECKPOINTS).mkdir(exist_ok=True)
    path, new = Path(CHECKPOINTS, f"step-{step:06d}.json"), Path(f"new-{os.getpid()}.json")
    new.write_text(json.dumps((step, state)))
    if path.exists():
        say("overwrote", step)
    os.replace(new, path)
    say("checkpoint", step)


def digests(state: list[float]) -> Iterator[list[float]]:
    """The states of a training without torch: each depends on all before it."""
    while True:
        digest = hashlib.sha256(repr(state).encode()).digest()
        state = [byte / 256 for byte in digest[:4]]
        yield state


class Drawn:
    """A data set without an end: the batch of each step and rank, from one step on."""

    def __init__(self, step: int):
        self.step = step

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        import torch

        seed = (self.step + index) * _RANKS + _RANK
        return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))


def weights(state: list[float], step: int) -> Iterator[list[float]]:
    """The states of a model whose gradients are averaged over the ranks."""
    import torch
    import torch.distributed as dist

    if _RANKS > 1:
        dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([state or [0.0] * 4]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in torch.utils.data.DataLoader(
        Drawn(step), batch_size=None, num_workers=int(_RANKS == 1)
    ):
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        if _RANKS > 1:
            dist.all_reduce(model.weight.grad)
        optimizer.step()
        yield model.weight.detach().flatten().tolist()


def by_engine(begun_at: int) -> None:
    """With dropout, batch normalization, and noise from Python's and NumPy's generators."""
    import random

    import numpy
    import torch
    from torch import nn

    from brimful_train import (
        BatchingConfig,
        CheckpointConfig,
        Config,
        DataConfig,
        OptimizerConfig,
        Task,
        exit_codes,
        fit,
    )
    from brimful_train.rng_state import Randomness

    if "--forget" in sys.argv:
        Randomness.put_back = lambda self, state: None  # type: ignore[method-assign]
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 4)]
    x, y = torch.randn(SAMPLES, 16), torch.randint(0, 4, (SAMPLES,))
    calls = itertools.count()

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        say("step", begun_at + next(calls) // ACCUMULATION)
        noise = 0.1 * float(numpy.random.normal()) + 0.1 * random.gauss(0, 1)
        return nn.functional.cross_entropy(model(batch[0] + noise), batch[1])

    config = Config(
        out=Path(),
        epochs=EPOCHS,
        device="cpu",
        batch=BatchingConfig(micro_batch=MICRO_BATCH, accumulation=ACCUMULATION),
        optimizer=OptimizerConfig(lr=1e-2),
        checkpoints=CheckpointConfig(every_epochs=None, every_steps=CHECKPOINT_EVERY),
        data=DataConfig(workers=1),
        log_every_s=1e6,
    )
    with exit_codes():
        data = torch.utils.data.TensorDataset(x, y)
        fit(Task("kills", nn.Sequential(*layers), loss, data), config)


def main() -> None:
    goes_on = "--resume" in sys.argv or "--engine" in sys.argv
    begun_at, state = newest(Path(CHECKPOINTS)) if goes_on else (0, [])
    if _RANK == 0:
        say("began", begun_at)
    if "--engine" in sys.argv:
        by_engine(begun_at)
        return
    states = weights(state, begun_at) if "--torch" in sys.argv else digests(state)
    for step in range(begun_at + 1, STEPS + 1):
        state = next(states)
        time.sleep(STEP_S)
        if _RANK == 0:
            say("step", step)
            if step % CHECKPOINT_EVERY == 0:
                keep(step, state)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
