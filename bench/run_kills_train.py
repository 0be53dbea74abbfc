"""What `bench.run_kills` kills: a training of a few milliseconds a step, without torch or with it,
on one rank or several. It keeps numbered checkpoints, of which none is ever written twice where
nothing is lost, and a log to which all of its lives append.

Behind `--resume last` it goes on from the newest checkpoint; else it begins anew, as most scripts
do.
"""

import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

STEPS, CHECKPOINT_EVERY, STEP_S = 120, 4, 0.004
CHECKPOINTS, LOG = "checkpoints", "log.txt"
_RANK, _RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def newest(folder: Path) -> tuple[int, list[float]]:
    """(steps, state) of the newest checkpoint; step 0 where there is none."""
    paths = sorted(folder.glob("step-*.json"))
    step, state = json.loads(paths[-1].read_text()) if paths else (0, [])
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
    while True:
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step * _RANKS + _RANK))
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        if _RANKS > 1:
            dist.all_reduce(model.weight.grad)
        optimizer.step()
        step += 1
        yield model.weight.detach().flatten().tolist()


def main() -> None:
    begun_at, state = newest(Path(CHECKPOINTS)) if "--resume" in sys.argv else (0, [])
    states = weights(state, begun_at) if "--torch" in sys.argv else digests(state)
    if _RANK == 0:
        say("began", begun_at)
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
