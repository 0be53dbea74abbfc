"""What the molecule recipe's loss takes at a batch of 8,192 pairs, in tiles and plain: `python -m
bench.ood_loss`.

Plain is the loss as one writes it: the matrix of all differences, PyTorch's softplus, its mean.
Both are measured by turns in one process, forward and backward from given energies: the seconds of
each pair of turns, and the most bytes that PyTorch's allocations held at once (counted by its
profiler). Both are predicted on an imaginary card as well: `--only-train tiled` is the script.
"""

import functools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch.nn import functional as F

from bench import harness
from recipes.ood_dpo.loss import head_loss
from recipes.ood_dpo.settings import HeadOptions

BATCH, BETA, LAMBDA = 8192, 0.1, 0.01
GPU = "a100-80gb"
MOST_BYTES, MOST_TIMES = 64 * 2**20, 1.2
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def plain(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    differences = high.unsqueeze(0) - low.unsqueeze(1)
    return F.softplus(-BETA * differences).mean() + LAMBDA * (
        low.pow(2).mean() + high.pow(2).mean()
    )


SIDES: dict[str, Loss] = {
    "plain": plain,
    "tiled": head_loss(HeadOptions(beta=BETA, lambda_reg=LAMBDA)),
}


def most_bytes(work: Callable[[], None]) -> int:
    """The most that allocations within `work` held at once, beyond what there was before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    held = most = 0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def of_energies(
    loss: Loss, batch: int
) -> Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(0)
    low, high = (torch.randn(batch, generator=source) + shift for shift in (0.0, 1.0))

    def work() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        leaves = low.clone().requires_grad_(), high.clone().requires_grad_()
        value = loss(*leaves)
        return value.detach(), *torch.autograd.grad(value, leaves)

    return work


def train(side: str, pairs: int) -> None:
    """Energies that are themselves what is learned, on a card if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    low, high = (torch.zeros(pairs, device=device, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.SGD([low, high], lr=1e-4)
    for _ in range(4):
        SIDES[side](low, high).backward()
        optimizer.step()
        optimizer.zero_grad()


def predicted(side: str, pairs: int) -> int:
    """Bytes allocated at most on an imaginary card.

    Its flag is none that brimful knows as a batch size: it predicts this one and searches for no
    larger.
    """
    words = [str(Path(__file__).resolve()), "--only-train", side, "--pairs", str(pairs)]
    with tempfile.TemporaryDirectory() as folder:
        answer = harness.brimful(["predict", "--gpu", GPU], [sys.executable, *words], folder)
    if "error" in answer["answer"]:
        raise SystemExit(answer["answer"]["error"]["problem"])
    return answer["answer"]["phases"]["train"]["allocated_bytes"]


def seconds(work: Callable[[], Any]) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - processor}


def by_turns(pairs: int, rounds: int) -> dict[str, Any]:
    works = {name: of_energies(loss, pairs) for name, loss in SIDES.items()}
    values = {name: work() for name, work in works.items()}  # which warms them up too
    sides = {name: functools.partial(seconds, work) for name, work in works.items()}
    rows = harness.by_turns(sides, rounds)
    names = ("loss", "gradient of E_id", "gradient of E_ood")
    return {
        "rows": rows,
        "tiled_over_plain": {
            clock: harness.span([row["tiled"][clock] / row["plain"][clock] for row in rows])
            for clock in ("wall_s", "cpu_s")
        },
        "largest_difference": {
            name: float((tiled - plain).abs().max() / plain.abs().max())
            for name, tiled, plain in zip(names, values["tiled"], values["plain"], strict=True)
        },
    }


def main(
    *,
    pairs: int = BATCH,
    rounds: int = 7,
    only_train: Annotated[Literal["plain", "tiled"] | None, "what is predicted"] = None,
    out: harness.Out = harness.RESULTS,
) -> None:
    if only_train:
        train(only_train, pairs)
        return
    time_figures = by_turns(pairs, rounds)
    measured = {name: most_bytes(of_energies(loss, pairs)) for name, loss in SIDES.items()}
    on_card = {name: predicted(name, pairs) for name in SIDES}
    ratios = time_figures["tiled_over_plain"]
    largest = max(measured["tiled"], on_card["tiled"])
    reached = largest < MOST_BYTES and ratios["cpu_s"]["median"] < MOST_TIMES
    for name in SIDES:
        held, card = measured[name] / harness.MIB, on_card[name] / harness.MIB
        print(f"{name}: {held:,.1f} MiB (predicted on {GPU}: {card:,.1f})")
    for clock, ratio in ratios.items():
        print(f"time, tiled over plain, {clock}: {ratio}")
    limits = f"under {MOST_BYTES >> 20} MiB and {MOST_TIMES} × the time"
    print(f"{limits}: {'yes' if reached else 'NO'}")
    what = "the all-pairs loss in tiles against the plain one, forward and backward"
    bytes_of = {"loss_bytes": measured, "predicted_loss_bytes": on_card}
    asked = {"batch": pairs, "rounds": rounds, "gpu": GPU, "threads": torch.get_num_threads()}
    result = {**harness.heading(what), **asked, **bytes_of, "time": time_figures}
    harness.keep("ood_loss", {**result, "reached": reached}, out)


if __name__ == "__main__":
    harness.run(main)
