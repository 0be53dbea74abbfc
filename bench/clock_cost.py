"""What the clock costs a trace: the same training steps on an imaginary card with rates and on one
without, in turn.

    python -m bench.clock_cost [--repeats 7]

Processor time of one process, the runs of both kinds alternating; the ratio is of medians. Prints a
table and writes a result.
"""

import gc
import io
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from bench import harness
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
    layers = [part for _ in range(40) for part in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(32, 64)


Job = Callable[[], tuple[nn.Module, torch.Tensor]]
JOBS: dict[str, Job] = {
    "12 transformer layers, AdamW": transformer,
    "50 convolutions with batch norm, AdamW": convolutions,
    "40 linear layers, AdamW": perceptron,
}


def seconds(job: Job, card: Card) -> float:
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


def compare(name: str, repeats: int) -> dict:
    with_clock = to_card(find_gpu("a100-40gb"))
    cards = (with_clock, replace(with_clock, bandwidth_bytes_per_s=None, flops={}))
    pairs = [[seconds(JOBS[name], card) for card in cards] for _ in range(1 + repeats)][1:]
    with_s, without_s = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = with_s / without_s
    print(f"{name:42} {without_s:7.3f} s without, {with_s:7.3f} s with: {ratio:.2f} x", flush=True)
    row = {"with_s": with_s, "without_s": without_s, "ratio": ratio}
    each = sorted(round(pair[0] / pair[1], 3) for pair in pairs)
    return {"job": name, **{key: round(value, 4) for key, value in row.items()}, "ratios": each}


def main(*, repeats: int = 7, out: harness.Out = harness.RESULTS) -> None:
    rows = [compare(name, repeats) for name in JOBS]
    what = "processor time of four traced steps, with the card's clock and without"
    harness.keep("clock_cost", {**harness.heading(what), "repeats": repeats, "rows": rows}, out)


if __name__ == "__main__":
    harness.run(main)
