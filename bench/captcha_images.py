"""The images of bench/captcha.py, once in the recipe's cache and once as the PNG files that the
example script reads, and how fast batches of 64 are loaded as floats from either.

Both sides shuffle, give (64, 1, 60, 160) floats from -1 to 1 and labels, and find their files in
the page cache. PNG: the example script's own data set in a DataLoader without workers. Array: the
engine's own pipeline, and what the recipe prepares on the device.
"""

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader

from bench import harness
from bench.captcha_example import ALPHABET, HEIGHT, LENGTH, WIDTH
from bench.captcha_example import train as example
from brimful_train.config import DataConfig
from brimful_train.data.epoch_sampler import EpochSampler, Position
from brimful_train.data.pipeline import DataPipeline
from recipes.captcha.cache import Captchas, images_of
from recipes.captcha.images import ImageOptions
from recipes.captcha.recipe import reader_task

FLAGS = ("--digits", "--length", str(LENGTH), "--height", str(HEIGHT), "--width", str(WIDTH))
BATCH = 64
IMAGES = 2048


def reduced(samples: int, eval_samples: int, folder: Path) -> ImageOptions:
    """Digits, and fewer pixels: what a CPU of two cores learns to read in a minute."""
    return ImageOptions(
        samples=samples,
        eval_samples=eval_samples,
        alphabet=ALPHABET,
        length=LENGTH,
        height=HEIGHT,
        width=WIDTH,
        cache=folder / "cache",
    )


def prepare(options: ImageOptions, png: Path) -> tuple[Captchas, Captchas]:
    """Draws what is missing, and writes the same pixels as PNG files: png/train/0123_000042.png."""
    both = images_of(options, harness.say)
    for name, captchas in zip(("train", "valid"), both, strict=True):
        write_files(captchas, options.look.alphabet, png / name)
    return both


def write_files(captchas: Captchas, alphabet: str, folder: Path) -> None:
    """Named by what they show, as the example script reads its labels off the names."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (image, label) in enumerate(zip(captchas.images, captchas.labels, strict=True)):
        path = folder / f"{''.join(alphabet[place] for place in label)}_{number:06d}.png"
        if not path.exists():
            Image.fromarray(image).save(path)


def loading(folder: Path, rounds: int = 5, images: int = IMAGES) -> dict[str, Any]:
    """Images per second of both, by turns; a round of the array is as many passes as take about as
    long as one of files.
    """
    options = ImageOptions(samples=images, eval_samples=1, cache=folder / "cache")
    train, _ = images_of(options, harness.say)
    write_files(train, options.look.alphabet, folder / "png-full")
    files = sorted((folder / "png-full").glob("*.png"))
    _rate(from_files(files), images)  # both into the page cache
    _rate(from_array(train, 1), images)
    sides = {
        "png": lambda: _rate(from_files(files), images),
        "array": lambda: _rate(from_array(train, 20), 20 * images),
    }
    rows = harness.by_turns(sides, rounds)
    png, array = ([row[side] for row in rows] for side in sides)
    return {
        "what": f"images per second, 60 x 160, batches of {BATCH} as floats",
        "images": images,
        "png_per_s": statistics.median(png),
        "array_per_s": statistics.median(array),
        "ratio": harness.span([a / b for a, b in zip(array, png, strict=True)]),
        "pairs": list(zip(png, array, strict=True)),
    }


def from_files(files: list[Path]) -> Iterator[Any]:
    yield from DataLoader(example.Captchas(files), batch_size=BATCH, shuffle=True)


def from_array(captchas: Captchas, passes: int) -> Iterator[Any]:
    task = reader_task(nn.Identity(), captchas, captchas)
    sampler = EpochSampler(len(captchas.images), seed=0, micro_batch=BATCH, accumulation=1)
    pipeline = DataPipeline(task.train_data, sampler, torch.device("cpu"), DataConfig(), seed=0)
    assert task.prepare is not None
    for epoch in range(passes):
        for step in pipeline.steps(Position(epoch, 0)):
            for part, samples in enumerate(step.parts):
                yield task.prepare(step.load(part, 0, samples))


def _rate(batches: Iterator[Any], images: int) -> float:
    begun, count = time.perf_counter(), 0
    for floats, _ in batches:
        assert floats.shape[1:] == (1, 60, 160) and floats.dtype == torch.float32
        count += len(floats)
    assert count == images
    return images / (time.perf_counter() - begun)
