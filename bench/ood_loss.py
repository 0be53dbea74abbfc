"""What the molecule recipe's loss takes at a batch of 8,192 pairs, in tiles and plain: `python -m
bench.ood_loss`.

Plain is the loss as one writes it: the matrix of all differences, PyTorch's softplus, its mean.
Both are measured by turns in
one process, forward and backward: the seconds of each pair of turns, and the most bytes that
PyTorch's allocations held at once (counted by its profiler). Of the loss alone, from given
energies, and of a whole update of the head, beyond its features. The update is predicted on an
imaginary card as well: `--update tiled` is the script that is predicted.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch.nn import functional as F

from bench import harness
from recipes.ood_dpo.head import make_head
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


def updates(loss: Loss, batch: int, device: torch.device) -> Callable[[], None]:
    """An update of the head on features that are there already."""
    head = make_head(HeadOptions(), 0).to(device)
    adam = torch.optim.AdamW(head.parameters(), lr=1e-4, weight_decay=1e-5)
    low, high = torch.randn(batch, 512, device=device), torch.randn(batch, 512, device=device)
    return _steps(lambda: loss(head(low), head(high)), adam)


def loss_alone(loss: Loss, batch: int, device: torch.device) -> Callable[[], None]:
    """Energies that are themselves what is learned: the loss without a head."""
    low, high = (torch.zeros(batch, device=device, requires_grad=True) for _ in range(2))
    return _steps(lambda: loss(low, high), torch.optim.SGD([low, high], lr=1e-4))


def _steps(
    value: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer
) -> Callable[[], None]:
    def work() -> None:
        value().backward()
        optimizer.step()
        optimizer.zero_grad()

    return work


def seconds(work: Callable[[], Any]) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - processor}


def by_turns(batch: int, rounds: int) -> dict[str, Any]:
    """Of the loss alone. Each round has both, the one that begins by turns."""
    works = {name: of_energies(loss, batch) for name, loss in SIDES.items()}
    values = {name: work() for name, work in works.items()}  # which warms them up too
    apart = [
        float((a - b).abs().max() / b.abs().max())
        for a, b in zip(values["tiled"], values["plain"], strict=True)
    ]
    rows = []
    for number in range(rounds):
        order = sorted(works, reverse=bool(number % 2))
        rows.append({name: seconds(works[name]) for name in order})
    ratios = {
        clock: sorted(row["tiled"][clock] / row["plain"][clock] for row in rows)
        for clock in ("wall_s", "cpu_s")
    }
    return {
        "rows": rows,
        "tiled_over_plain": {
            clock: [r[0], statistics.median(r), r[-1]] for clock, r in ratios.items()
        },
        "largest_difference": dict(
            zip(("loss", "gradient of E_id", "gradient of E_ood"), apart, strict=True)
        ),
    }


def predicted(what: str, side: str, batch: int) -> int:
    """Bytes allocated at most on an imaginary card.

    Its flag is none that brimful knows as a batch size: it predicts this one and searches for no
    larger.
    """
    script = str(Path(__file__).resolve())
    command = [sys.executable, script, f"--{what}", side, "--pairs", str(batch)]
    with tempfile.TemporaryDirectory() as folder:
        answer = harness.brimful(["predict", "--gpu", GPU], command, folder)["answer"]
    if "error" in answer:
        raise SystemExit(answer["error"]["problem"])
    return answer["phases"]["train"]["allocated_bytes"]


def figures(batch: int, rounds: int) -> dict[str, Any]:
    features_bytes, cpu = 2 * batch * 512 * 4, torch.device("cpu")
    return {
        "batch": batch,
        "rounds": rounds,
        "gpu": GPU,
        "loss_bytes": {name: most_bytes(of_energies(loss, batch)) for name, loss in SIDES.items()},
        "update_bytes_beyond_features": {
            name: most_bytes(updates(loss, batch, cpu)) for name, loss in SIDES.items()
        },
        "predicted_loss_bytes": {name: predicted("alone", name, batch) for name in SIDES},
        "predicted_update_bytes_beyond_features": {
            name: predicted("update", name, batch) - features_bytes for name in SIDES
        },
        "time": by_turns(batch, rounds),
    }


def report(result: dict[str, Any]) -> None:
    for name in SIDES:
        loss, update, card_loss, card_update = (
            result[key][name] / harness.MIB
            for key in (
                "loss_bytes",
                "update_bytes_beyond_features",
                "predicted_loss_bytes",
                "predicted_update_bytes_beyond_features",
            )
        )
        print(
            f"{name}: the loss {loss:,.1f} MiB (predicted on {GPU}: {card_loss:,.1f}); an update "
            f"of the head beyond its features {update:,.1f} MiB (predicted: {card_update:,.1f})"
        )
    for clock, (low, middle, high) in result["time"]["tiled_over_plain"].items():
        print(f"time, tiled over plain, {clock}: {middle:.2f} ({low:.2f} to {high:.2f})")
    limits = f"under {MOST_BYTES >> 20} MiB and {MOST_TIMES} × the time"
    print(f"{limits}: {'yes' if result['reached'] else 'NO'}")


def main(
    *,
    pairs: int = BATCH,
    rounds: int = 7,
    update: Annotated[
        Literal["plain", "tiled"] | None, "make some updates of the head, on a card if there is one"
    ] = None,
    alone: Annotated[Literal["plain", "tiled"] | None, "the same of the loss alone"] = None,
    out: harness.Out = harness.RESULTS,
) -> None:
    if update or alone:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        make, side = (updates, update) if update else (loss_alone, alone)
        work = make(SIDES[side or ""], pairs, device)
        for _ in range(4):
            work()
        return
    result = figures(pairs, rounds)
    largest = max(result["loss_bytes"]["tiled"], result["predicted_loss_bytes"]["tiled"])
    is_quick = result["time"]["tiled_over_plain"]["cpu_s"][1] < MOST_TIMES
    result["reached"] = largest < MOST_BYTES and is_quick
    report(result)
    what = "the all-pairs loss in tiles against the plain one, forward and backward"
    threads = {"threads": torch.get_num_threads()}
    harness.keep("ood_loss", {**harness.heading(what), **threads, **result}, out)


if __name__ == "__main__":
    harness.run(main)
