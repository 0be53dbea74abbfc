"""Where the time of the captcha recipe's step goes on a card.

    python -m bench.card.captcha_profile

Trains the reader by the engine with the preset's settings for a card, on random images, and once
more with each suspect changed: without `cudnn.benchmark`, with the channels first, with batch
normalization in fp32, and with a first convolution of eight input channels (seven of them zero) in
place of one. Prints a line of JSON for each: seconds of a step (timed without the profiler),
images a second, and the operations of torch.profiler that take most of the device's time."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from brimful_train import BatchingConfig, CheckpointConfig, Config, Task, fit
from recipes.captcha.cache import Captchas
from recipes.captcha.model import Reader
from recipes.captcha.presets import TUNED_ON_A_CARD
from recipes.captcha.recipe import reader_task

WARM_UP, TIMED, PROFILED = 10, 30, 5  # steps
OPERATIONS = 15  # those that are named
_BATCHES = 4  # of random images
_SAMPLES = TUNED_ON_A_CARD.flags["batch-size"]


@dataclass(frozen=True)
class Variant:
    """What differs from the preset: settings of the engine, or the model."""

    name: str
    settings: dict[str, Any]
    change: Callable[[Reader], None] = lambda model: None


class _NormInFp32(nn.BatchNorm2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float()).to(input.dtype)


def _norms_in_fp32(model: Reader) -> None:
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.__class__ = _NormInFp32


class _EightChannels(nn.Conv2d):
    """The convolution of one channel, of eight: of seven zeros the sum is the same."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(F.pad(input, (0, 0, 0, 0, 0, 7)))


def _eight_channels(model: Reader) -> None:
    first: Any = model.features[0]
    first[0] = _EightChannels(8, first[0].out_channels, 3, padding=1)


VARIANTS = (
    Variant("preset", {}),
    Variant("without cudnn.benchmark", {"cudnn_benchmark": False}),
    Variant("channels first", {"channels_last": False}),
    Variant("batch normalization in fp32", {}, _norms_in_fp32),
    Variant("first convolution of eight channels", {}, _eight_channels),
)


def profile(variant: Variant, device: str, samples: int = int(_SAMPLES)) -> dict[str, Any]:
    """One training of a few steps: the figures of its step."""
    moments: list[float] = []
    steps = _steps(device, moments)
    model = Reader()
    variant.change(model)
    task = reader_task(model, _random_images(samples * _BATCHES), _random_images(samples))
    plain = task.loss

    def loss(model: nn.Module, batch: Any) -> Any:
        next(steps, None)
        return plain(model, batch)

    with tempfile.TemporaryDirectory() as folder:
        fit(
            Task("captcha", model, loss, task.train_data, prepare=task.prepare),
            _config(Path(folder), device, samples, variant.settings),
        )
    profiler: Any = next(steps)
    step_s = (moments[1] - moments[0]) / TIMED
    return {
        "variant": variant.name,
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "torch": torch.__version__,
        "samples": samples,
        "step_ms": step_s * 1e3,
        "images_per_s": samples / step_s,
        "us_per_image": step_s / samples * 1e6,
        "operations": _operations(profiler, device),
    }


def _config(out: Path, device: str, samples: int, settings: dict[str, Any]) -> Config:
    flags = TUNED_ON_A_CARD.flags
    return Config(
        out=out,
        epochs=WARM_UP + TIMED + PROFILED,
        max_steps=WARM_UP + TIMED + PROFILED + 2,
        device=device,
        batch=BatchingConfig(micro_batch=samples),
        checkpoints=CheckpointConfig(every_epochs=None),
        clip_norm=float(flags["clip-norm"]),
        **{
            "precision": str(flags["precision"]),
            "channels_last": bool(flags["channels-last"]),
            "cudnn_benchmark": bool(flags["cudnn-benchmark"]),
            **settings,
        },
    )


def _steps(device: str, moments: list[float]) -> Iterator[Any]:
    """Advanced before each step, and once after the last: times the steps after the warm-up, then
    profiles some. The last value is the profiler."""

    def now() -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    for _ in range(WARM_UP):
        yield
    moments.append(now())
    for _ in range(TIMED):
        yield
    moments.append(now())
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.startswith("cuda"):
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    profiler = torch.profiler.profile(activities=activities)
    with profiler:
        for _ in range(PROFILED):
            yield
        now()
    while True:
        yield profiler


def _operations(profiler: Any, device: str) -> list[dict[str, Any]]:
    """The operations that take most, by the device's own time, and their share of all."""
    field = "self_device_time_total" if device.startswith("cuda") else "self_cpu_time_total"
    rows = sorted(profiler.key_averages(), key=lambda row: -getattr(row, field))
    total = sum(getattr(row, field) for row in rows) or 1
    return [
        {
            "name": row.key[:160],
            "calls_per_step": row.count / PROFILED,
            "us_per_step": getattr(row, field) / PROFILED,
            "share": getattr(row, field) / total,
        }
        for row in rows[:OPERATIONS]
    ]


def _random_images(count: int) -> Captchas:
    source = numpy.random.default_rng(0)
    images = source.integers(0, 256, (count, 60, 160), dtype=numpy.uint8)
    return Captchas(images, source.integers(0, 36, (count, 4), dtype=numpy.uint8), Path())


def main() -> int:
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    samples = int(_SAMPLES) if device != "cpu" else 8
    for variant in VARIANTS:
        print(json.dumps(profile(variant, device, samples)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
