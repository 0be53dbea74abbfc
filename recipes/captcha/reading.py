"""What a trained network reads in image files, and the facts beside its checkpoints that this
needs.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from brimful.units import counted
from brimful_train.distributed.ranks import device_for
from recipes.captcha.images import scaled
from recipes.captcha.model import Reader
from recipes.common.description import description_of, trained_weights
from recipes.common.pieces import in_pieces
from recipes.common.running import say

FILE_NAME = "captcha.json"
# of the files of a folder that are read
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


@dataclass(frozen=True)
class ReaderDescription:
    """What a trained network reads, and the images that it learned from."""

    alphabet: str
    length: int
    height: int
    width: int
    samples: int
    image_seed: int


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
    not there, and a folder without images give a note.
    """
    device = device_for(device_name)
    model, trained_on = load_reader(checkpoint)
    model.to(device).eval()
    files = []
    for path in paths:
        inside = sorted(path.iterdir()) if path.is_dir() else []
        images = [file for file in inside if file.suffix.lower() in ENDINGS]
        files += images or [path]
    for readings in in_pieces(
        files, lambda some: list(_read_batch(model, trained_on, some, device)), batch_size, device
    ):
        yield from readings


def load_reader(checkpoint: Path) -> tuple[Reader, ReaderDescription]:
    """The network of a checkpoint, or of the best one of a training's folder, and what it was
    trained on.
    """
    _, trained_on = description_of(checkpoint, FILE_NAME, ReaderDescription)
    model = Reader(len(trained_on.alphabet), trained_on.length, trained_on.height, trained_on.width)
    model.load_state_dict(trained_weights(checkpoint))
    return model, trained_on


def _read_batch(
    model: Reader, trained_on: ReaderDescription, files: Sequence[Path], device: torch.device
) -> Iterator[Reading]:
    opened = [_opened(file, trained_on) for file in files]
    pixels = [image for image, _ in opened if image is not None]
    texts = iter(_texts(model, trained_on, np.stack(pixels), device) if pixels else [])
    for file, (image, note) in zip(files, opened, strict=True):
        if image is None:
            yield Reading(str(file), None, None, note)
        else:
            text, confidence = next(texts)
            yield Reading(str(file), text, confidence, note)


def _opened(file: Path, trained_on: ReaderDescription) -> tuple[np.ndarray | None, str]:
    """The image in grey at the network's size, and what was done to it; None: not an image."""
    from PIL import Image, UnidentifiedImageError

    if file.is_dir():
        return None, f"no image files in it ({', '.join(ENDINGS)})"
    try:
        with Image.open(file) as picture:
            grey = picture.convert("L")
    except UnidentifiedImageError:
        return None, "not an image"
    # missing, truncated, unreadable, too large
    except (OSError, Image.DecompressionBombError, ValueError) as error:
        return None, f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if grey.size == (trained_on.width, trained_on.height):
        return np.asarray(grey, dtype=np.uint8), ""
    note = f"scaled from {grey.height} × {grey.width} to {trained_on.height} × {trained_on.width}"
    return np.asarray(scaled(grey, trained_on.height, trained_on.width), dtype=np.uint8), note


@torch.inference_mode()
def _texts(
    model: Reader, trained_on: ReaderDescription, pixels: np.ndarray, device: torch.device
) -> list[tuple[str, float]]:
    images = (
        torch.from_numpy(pixels).to(device).unsqueeze(1).to(torch.float32).div_(127.5).sub_(1.0)
    )
    chances, places = model(images).softmax(-1).max(-1)
    return [
        ("".join(trained_on.alphabet[place] for place in row), chance)
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
