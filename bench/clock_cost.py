"""What the clock costs a trace: the same training steps on an imaginary card with rates and on one
without, in turn.

    python -m bench.clock_cost [--repeats 7]

Processor time of one process, the runs of both kinds alternating; the ratio is of medians. Prints a
table and writes a result.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import io
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import torch
from torch import nn

from brimful.measure.gpus import find_gpu, to_card
from brimful_inside import imaginary
from brimful_inside.wire import Card

STEPS = 4


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False), torch.randn(8, 128, 256)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    def block(inner: int, outer: int) -> list[nn.Module]:
        return [nn.Conv2d(inner, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]

    layers = block(3, 64) + [part for _ in range(49) for part in block(64, 64)]
    return nn.Sequential(*layers), torch.randn(8, 3, 32, 32)


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(
        *[part for _ in range(40) for part in (nn.Linear(64, 64), nn.ReLU())]
    ), torch.randn(32, 64)


JOBS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "12 transformer layers, AdamW": transformer,
    "50 convolutions with batch norm, AdamW": convolutions,
    "40 linear layers, AdamW": perceptron,
}


def seconds(job: Callable[[], tuple[nn.Module, torch.Tensor]], card: Card) -> float:
    """Processor time of the traced steps."""
    model, data = job()
    gpu = imaginary.enter(card, None, io.StringIO())
    try:
        model, data = model.to("cuda"), data.to("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        begun = time.process_time()
        for step in range(STEPS):
            model(data).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            gpu.step(step + 1)
        gpu.end_trace()
        return time.process_time() - begun
    finally:
        gpu.leave()
        gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    on = to_card(find_gpu("a100-40gb"))
    off = replace(on, bandwidth_bytes_per_s=None, flops={})
    rows = []
    for name, job in JOBS.items():
        seconds(job, on), seconds(job, off)
        pairs = [(seconds(job, on), seconds(job, off)) for _ in range(args.repeats)]
        with_clock, without = (statistics.median(times) for times in zip(*pairs, strict=True))
        ratios = sorted(a / b for a, b in pairs)
        rows.append(
            {
                "job": name,
                "with_s": round(with_clock, 4),
                "without_s": round(without, 4),
                "ratio": round(with_clock / without, 3),
                "ratios": [round(r, 3) for r in ratios],
            }
        )
        print(
            f"{name:42} {without:7.3f} s without, {with_clock:7.3f} s with: "
            f"{with_clock / without:.2f} x",
            flush=True,
        )
    today = datetime.date.today()
    result = {
        "bench": "clock_cost",
        "what": "processor time of four traced steps, with the card's clock and without",
        "date": today.isoformat(),
        "repeats": args.repeats,
        "versions": {"torch": version("torch"), "python": platform.python_version()},
        "rows": rows,
    }
    path = args.out / f"clock_cost-{today:%Y-%m}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
