"""The images of a data set as one memory-mapped uint8 array, drawn once.

    <folder>/train-0_50000x60x160_4of36-1a2b3c4d.npy             the array, when it is whole
    <folder>/train-0_50000x60x160_4of36-1a2b3c4d.npy.partial     while it is drawn
    <folder>/train-0_50000x60x160_4of36-1a2b3c4d.npy.lock        held by the one process that draws

The name's last part is a digest of all that decides the pixels. Labels are not kept: they follow
from the seed (`images.texts`).
"""

import functools
import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from brimful.errors import DiskFull, UsageError
from brimful.measure.host import cores
from brimful.units import counted, format_bytes
from recipes.captcha.images import ImageOptions, Key, Painter, texts
from recipes.common.cache import Say, cache_folder, made_once
from recipes.common.running import Progress
from recipes.common.workers import mapped

PART = 256  # images of a part: 2.5 MB at 60 × 160, about a second of one process


@dataclass(frozen=True)
class Captchas:
    """`images` (count, height, width) uint8, memory-mapped; `labels` (count, length) uint8, places
    in the alphabet.
    """

    images: np.ndarray
    labels: np.ndarray
    path: Path


def captchas(key: Key, folder: Path, processes: int, say: Say) -> Captchas:
    """The data set, drawn now if it is not there. Of any number of processes at once, one draws and
    the others wait.

    `say` is called for drawing, waiting and damage. Raises UsageError (package, font, folder),
    DiskFull.
    """
    path = folder / key.file_name
    images = made_once(
        path,
        "drawing",
        lambda say: _whole(path, key, say),
        lambda aside: _draw(aside, key, processes, say),
        say,
    )
    places = [
        [key.look.alphabet.index(character) for character in text]
        for text in texts(key.seed, key.count, key.look)
    ]
    return Captchas(images, np.array(places, dtype=np.uint8), path)


def _whole(path: Path, key: Key, say: Say) -> np.ndarray | None:
    """The array, if the file is there and whole. None otherwise, with a message where it is
    damaged.
    """
    try:
        images = npy.open_memmap(path, mode="r")
        if (images.dtype, images.shape) != (np.dtype(np.uint8), key.shape):
            raise ValueError(f"{images.dtype} of {images.shape}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.",
            suggestion="Choose another folder with --cache.",
        ) from error
    except ValueError as error:  # also of a file that was cut off
        say(f"{path} is no whole array of {key.shape} bytes ({error}): it is drawn anew.")
        return None
    return images


def _draw(aside: Path, key: Key, processes: int, say: Say) -> None:
    """Draws all images into a file, which is whole and on the disk when this returns."""
    Painter(key.look)  # a package that is missing is reported here, once
    size = math.prod(key.shape)
    processes = min(processes, math.ceil(key.count / PART))
    progress = Progress(say, "images drawn", key.count)
    with aside.open("wb") as file:
        disk = os.fstatvfs(file.fileno())
        if size > disk.f_bavail * disk.f_frsize:  # now, and not after minutes of drawing
            raise DiskFull(
                str(aside.with_suffix("")),
                "nothing of this data",
                f"The {key.count:,} images take {format_bytes(size)}, and the disk of "
                f"{aside.parent} has less free.",
                "Free some space, ask for fewer images with --samples, or choose a folder on "
                "another disk with --cache.",
            )
        say(
            f"Drawing {counted(key.count, 'image')}, once for all later runs, in "
            f"{counted(processes, 'process', 'processes')}."
        )
        shown = texts(key.seed, key.count, key.look)
        parts = [(start, shown[start : start + PART]) for start in range(0, key.count, PART)]
        header = {"descr": "|u1", "fortran_order": False, "shape": key.shape}
        npy.write_array_header_1_0(file, header)
        for pixels in mapped(functools.partial(draw_part, key), parts, processes, chunk=1, alone=2):
            file.write(pixels)
            progress.add(PART)
        file.flush()
        os.fsync(file.fileno())


painter = functools.lru_cache(maxsize=1)(Painter)


def draw_part(key: Key, part: tuple[int, list[str]]) -> bytes:
    """The pixels of the texts of one part, which begins at an image's number."""
    start, shown = part
    images = [painter(key.look).draw(key.seed, start + n, text) for n, text in enumerate(shown)]
    return b"".join(image.tobytes() for image in images)


def images_of(options: ImageOptions, say: Say) -> tuple[Captchas, Captchas]:
    """(training, held-out), drawn now where they are not in the cache. Other seeds; labels may
    recur, images may not.
    """
    folder = options.cache or cache_folder("captcha")
    processes = options.draw_processes or cores()
    look, seed = options.look, options.image_seed
    train = captchas(Key(f"train {seed}", options.samples, look), folder, processes, say)
    valid = captchas(Key(f"valid {seed}", options.eval_samples, look), folder, processes, say)
    return train, held_out(train, valid, say)


def held_out(train: Captchas, valid: Captchas, say: Say) -> Captchas:
    """`valid` without the images whose bytes some training image has too, which a message counts.

    Seeds alone do not promise it: of tiny images of one character the same may be drawn twice.
    """
    drawn = set(map(_digest, train.images))
    fresh = np.array([_digest(image) not in drawn for image in valid.images], dtype=bool)
    left = int(fresh.sum())
    if not left:
        raise UsageError(
            f"All {len(fresh):,} held-out images are among the training images too.",
            "Images this small and plain repeat themselves, so nothing would be measured.",
            "Make them larger (--height, --width) or longer (--length).",
        )
    if left == len(fresh):
        return valid
    shared = len(fresh) - left
    say(
        f"{shared:,} of {len(fresh):,} held-out images are among the training images too: "
        f"{left:,} are measured."
    )
    return Captchas(valid.images[fresh], valid.labels[fresh], valid.path)


def _digest(image: np.ndarray) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()
