"""What a trained network reads in image files, and the facts beside its checkpoints that this
needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from brimful.errors import UsageError
from brimful.units import counted
from brimful_train.distributed.ranks import device_for
from recipes.captcha.images import scaled
from recipes.captcha.model import Reader
from recipes.common.facts import facts_of, trained_weights
from recipes.common.pieces import in_pieces
from recipes.common.running import say

FILE_NAME = "captcha.json"
ENDINGS = {
    ".png",
    ".jpg",
    ".jpeg",
    ".bmp",
    ".gif",
    ".webp",
    ".tif",
    ".tiff",
}  # of the files of a folder that are read


@dataclass(frozen=True)
class Reading:
    """Of one file. `text` is None where it could not be read; `note` says why, or what was done to
    the image.

    `confidence` is the product of the softmax of each character: the network's own, not a measured
    rate of being right.
    """

    path: str
    text: str | None
    confidence: float | None = None
    note: str = ""


def read_images(
    paths: Sequence[Path], checkpoint: Path, batch_size: int, device_name: str
) -> Iterator[Reading]:
    """Reads files, and folders of them in the order of their names. A file that is no image, or is
    not there, gives a note.

    Raises UsageError where there is nothing to read at all.
    """
    if batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}: it is 1 or more.")
    found = [(path, *_found(path)) for path in paths]
    files = [file for _, inside, _ in found for file in inside]
    missing = [(path, error) for path, _, error in found if error is not None]
    if missing and not files:
        raise missing[0][1]
    device = device_for(device_name)
    model, facts = load_reader(checkpoint)
    model.to(device).eval()
    for readings in in_pieces(
        files, lambda some: list(_read_batch(model, facts, some, device)), batch_size, device
    ):
        yield from readings
    yield from (
        Reading(str(path), None, None, error.explanation or "it is not there")
        for path, error in missing
    )


def load_reader(checkpoint: Path) -> tuple[Reader, Facts]:
    """The network of a checkpoint, or of the best one of a training's folder, and what it was
    trained on.
    """
    _, facts = facts_of(checkpoint, FILE_NAME, Facts)
    model = Reader(len(facts.alphabet), facts.length, facts.height, facts.width)
    model.load_state_dict(trained_weights(checkpoint))
    return model, facts


def _found(path: Path) -> tuple[list[Path], UsageError | None]:
    """The files that `path` stands for, or why there are none."""
    if not path.exists():
        return [], UsageError(
            f"{path} is not there.", suggestion="Name an image file or a folder of them."
        )
    if not path.is_dir():
        return [path], None
    try:
        found = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
    except OSError as error:
        return [], UsageError(
            f"{path} cannot be opened.", str(error.strerror), "Make it readable, or name the files."
        )
    none = f"no image files in it ({', '.join(sorted(ENDINGS))})"
    return found, None if found else UsageError(
        f"{path} has no image files.", none, "Name the files."
    )


def _read_batch(
    model: Reader, facts: Facts, files: Sequence[Path], device: torch.device
) -> Iterator[Reading]:
    opened = [_opened(file, facts) for file in files]
    pixels = [image for image, _ in opened if image is not None]
    texts = iter(_texts(model, facts, np.stack(pixels), device) if pixels else [])
    for file, (image, note) in zip(files, opened, strict=True):
        if image is None:
            yield Reading(str(file), None, None, note)
        else:
            text, confidence = next(texts)
            yield Reading(str(file), text, confidence, note)


def _opened(file: Path, facts: Facts) -> tuple[np.ndarray | None, str]:
    """The image in grey at the network's size, and what was done to it; None for what is no image."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as picture:
            grey = picture.convert("L")
    except UnidentifiedImageError:
        return None, "no image"
    except (
        OSError,
        Image.DecompressionBombError,
        ValueError,
    ) as error:  # truncated, unreadable, too large
        return None, f"cannot be read: {error}"
    if grey.size == (facts.width, facts.height):
        return np.asarray(grey, dtype=np.uint8), ""
    note = f"scaled from {grey.height} × {grey.width} to {facts.height} × {facts.width}"
    return np.asarray(scaled(grey, facts.height, facts.width), dtype=np.uint8), note


@torch.inference_mode()
def _texts(
    model: Reader, facts: Facts, pixels: np.ndarray, device: torch.device
) -> list[tuple[str, float]]:
    images = (
        torch.from_numpy(pixels).to(device).unsqueeze(1).to(torch.float32).div_(127.5).sub_(1.0)
    )
    chances, places = model(images).softmax(-1).max(-1)
    return [
        ("".join(facts.alphabet[place] for place in row), chance)
        for row, chance in zip(places.tolist(), chances.prod(-1).tolist(), strict=True)
    ]


def show(readings: Iterator[Reading], as_json: bool) -> int:
    """A line for each file on standard output; a sentence for each that could not be read on
    standard error.

    Returns the exit code: 2 where there was one, for who reads that alone.
    """
    files = failed = 0
    for reading in readings:
        files += 1
        if as_json:
            print(json.dumps(asdict(reading)), flush=True)
        elif reading.text is not None:
            print(
                f"{reading.path}\t{reading.text}" + (f"\t({reading.note})" if reading.note else ""),
                flush=True,
            )
        if reading.text is None:
            failed += 1
            say(f"{reading.path} could not be read: {reading.note}.")
    if failed:
        say(f"{failed:,} of {counted(files, 'file')} could not be read.")
    return 2 if failed else 0


@dataclass(frozen=True)
class Facts:
    """What a trained network reads, and the images that it learned from."""

    alphabet: str
    length: int
    height: int
    width: int
    samples: int
    image_seed: int
