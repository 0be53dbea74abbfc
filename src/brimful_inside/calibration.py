"""What a real card of this machine takes and gives: ``python calibration.py [--no-rates]``, in a
process of its own. The last line it prints is ``BRIMFUL`` and a JSON object: the card, the
versions, `outside_bytes` (in use on the card beside PyTorch's own segments at each of `STAGES`,
which run what a training runs, as CUDA loads kernels at first use), and `rates`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import nn

STAGES = ("bare", "tensor", "cublas", "training", "cudnn")
REPEATS = 7
# of free memory, from which on products of 8192 instead of 4096 are timed
LARGE_PRODUCT_BYTES = 8 << 30
COPIED_BYTES = 256 << 20
SENT_BYTES = 64 << 20
SMALL_KERNELS = 500


def outside_bytes() -> int:
    """Bytes of the card in use beside the segments of this process's allocator."""
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def contexts() -> Dict[str, int]:
    """`outside_bytes` after each stage of a training's life."""
    products = nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 10))
    layers = [
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1),
        nn.MaxPool2d(2),
    ]
    convolutions = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    stages: Dict[str, Callable[[], Any]] = {
        "bare": torch.cuda.init,
        "tensor": lambda: torch.randn(64, 256, device="cuda").mul_(2.0).sum(),
        "cublas": lambda: torch.mm(
            torch.ones(256, 256, device="cuda"), torch.ones(256, 256, device="cuda")
        ),
        "training": lambda: _train(products, (64, 256)),
        "cudnn": lambda: _train(convolutions, (16, 3, 64, 64)),
    }
    outside: Dict[str, int] = {}
    for name in STAGES:
        stages[name]()
        outside[name] = outside_bytes()
    return outside


def _train(model: nn.Module, shape: Any) -> None:
    """Three steps in float32 and three under autocast."""
    model = model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    labels = torch.zeros(shape[0], dtype=torch.long, device="cuda")
    for number in range(6):
        with torch.autocast("cuda", enabled=number >= 3):
            loss = nn.functional.cross_entropy(model(torch.randn(*shape, device="cuda")), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def seconds_of(work: Callable[[], Any]) -> Optional[float]:
    """The median time of `work` on the card; None where no time passes."""
    work()
    middle = sorted(_seconds(work) for _ in range(REPEATS))[REPEATS // 2]
    return middle if middle > 0 else None


def _seconds(work: Callable[[], Any]) -> float:
    """By events around it."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1000


def rates() -> Dict[str, Optional[float]]:
    """What is reached: bytes and operations per second, seconds of a small kernel and of a
    dispatch; None: no time passed."""
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    # Written to: all pages of memory that never was are one page of zeros, which the cache holds.
    host = torch.ones(SENT_BYTES, dtype=torch.uint8)
    bandwidth = _per_second(2 * COPIED_BYTES, lambda s=source, t=target: t.copy_(s))
    link = _per_second(SENT_BYTES, lambda s=source, h=host: s[:SENT_BYTES].copy_(h))
    del source, target
    return {
        "bandwidth_bytes_per_s": bandwidth,
        "link_bytes_per_s": link,
        **_products(),
        **_small_kernels(),
    }


def _per_second(amount: int, work: Callable[[], Any]) -> Optional[float]:
    taken = seconds_of(work)
    return None if taken is None else amount / taken


def _products() -> Dict[str, Optional[float]]:
    """Operations per second of square products, by rate class."""
    free, _ = torch.cuda.mem_get_info()
    size = 8192 if free > LARGE_PRODUCT_BYTES else 4096
    rates_by_kind: Dict[str, Optional[float]] = {}
    kinds = [("fp32", torch.float32, False), ("fp16", torch.float16, False)]
    if torch.cuda.get_device_capability() >= (8, 0):
        kinds.append(("tf32", torch.float32, True))
    if torch.cuda.is_bf16_supported():
        kinds.append(("bf16", torch.bfloat16, False))
    before = torch.backends.cuda.matmul.allow_tf32
    for name, dtype, tf32 in kinds:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        rates_by_kind[name + "_flops"] = _per_second(
            2 * size**3, lambda a=a, b=b, out=out: torch.mm(a, b, out=out)
        )
    torch.backends.cuda.matmul.allow_tf32 = before
    return rates_by_kind


def _small_kernels() -> Dict[str, Optional[float]]:
    """`kernel_s`: from one kernel of 16 numbers to the next, the host far ahead. `dispatch_s`: the
    host's time for one."""
    x = torch.zeros(16, device="cuda")

    def many() -> None:
        for _ in range(SMALL_KERNELS):
            x.add_(1.0)

    many()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    many()
    dispatch_s = (time.perf_counter() - begun) / SMALL_KERNELS
    torch.cuda.synchronize()
    # The card waits while the host gets ahead: four times what the host needs, in cycles of at most
    # 2 GHz.
    torch.cuda._sleep(int(4 * dispatch_s * SMALL_KERNELS * 2e9))
    kernel_s = _seconds(many) / SMALL_KERNELS
    return {"kernel_s": kernel_s if kernel_s > 0 else None, "dispatch_s": dispatch_s}


def calibrate(with_rates: bool = True) -> Dict[str, Any]:
    outside = contexts()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "card": {
            "name": properties.name,
            "total_bytes": torch.cuda.mem_get_info()[1],
            "capability": [properties.major, properties.minor],
            "multiprocessors": properties.multi_processor_count,
        },
        "versions": {
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        },
        "outside_bytes": outside,
        "rates": rates() if with_rates else {},
    }


def main(words: List[str]) -> int:
    none = not torch.cuda.is_available()
    report = (
        {"none": "torch %s sees no CUDA card" % torch.__version__}
        if none
        else calibrate("--no-rates" not in words)
    )
    print("BRIMFUL" + json.dumps(report))
    return 4 if none else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
