"""The images of a data set as one memory-mapped uint8 array, drawn once.

    <folder>/train-0_50000x60x160_4of36-1a2b3c4d.npy             the array, when it is whole
    <folder>/train-0_50000x60x160_4of36-1a2b3c4d.npy.partial     while it is drawn
    <folder>/train-0_50000x60x160_4of36-1a2b3c4d.npy.progress    which parts of that are drawn, with their checksums
    <folder>/train-0_50000x60x160_4of36-1a2b3c4d.npy.lock        held by the one process that draws

The name's last part is a digest of all that decides the pixels. A process that is killed loses its lock and the part at hand;
the next one goes on from the parts whose checksums hold. Labels are not kept: they follow from the seed (`images.texts`).
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
from filelock import FileLock, Timeout
from numpy.lib import format as npy

from brimful.errors import BrimfulError, DiskFull, UsageError
from brimful.measure.host import cores
from brimful.recipes.captcha.drawing import draw_parts
from brimful.recipes.captcha.images import ImageOptions, Key, texts
from brimful.units import format_bytes

__all__ = ["Captchas", "cache_folder", "captchas", "held_out", "images_of", "shared_with"]

PART = 256  # images of a part: 2.5 MB at 60 × 160, about a second of one process
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system's own are: stat(2)
POLL_EVERY_S = 2.0  # at the lock, while another process draws

Say = Callable[[str], None]


@dataclass(frozen=True)
class Captchas:
    """`images` (count, height, width) uint8, memory-mapped; `labels` (count, length) uint8, places in the alphabet."""

    images: np.ndarray
    labels: np.ndarray
    path: Path


def cache_folder() -> Path:
    """brimful's folder among the user's caches: under XDG_CACHE_HOME, which is ~/.cache by default."""
    root = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(root) / "brimful" / "captcha"


def captchas(key: Key, folder: Path, processes: int, say: Say) -> Captchas:
    """The data set, drawn now if it is not there. Any number of processes may ask at once: one draws, the others wait.

    `say` is called for drawing, waiting and damage. Raises UsageError (package, font, folder), DiskFull.
    """
    path = folder / key.file_name
    images = _whole(path, key, say)
    if images is None:
        _make_folder(folder)
        with _Lock(path, say):
            images = _whole(path, key, lambda _: None)  # another process may have drawn it meanwhile
            if images is None:
                _draw(path, key, processes, say)
                images = _whole(path, key, say)
    if images is None:
        raise BrimfulError(
            f"{path} was drawn, and is not what was written.", "The disk is failing, or something else writes there."
        )
    place = {character: index for index, character in enumerate(key.look.alphabet)}
    shown = texts(key.seed, key.count, key.look)
    return Captchas(images, np.array([[place[one] for one in text] for text in shown], dtype=np.uint8), path)


def _whole(path: Path, key: Key, say: Say) -> np.ndarray | None:
    """The array, if the file is there with its full length. None otherwise: what is damaged is drawn anew, with a message."""
    expected = _header(key)
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(len(expected))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", suggestion="Choose another folder with --cache."
        ) from error
    if head != expected:
        say(f"{path} is not an array of {key.shape} bytes: it is drawn anew.")
        return None
    whole = len(expected) + int(np.prod(key.shape))
    if size != whole:
        say(f"{path} has {size:,} of {whole:,} bytes: it was cut off, and is drawn anew.")
        return None
    return np.memmap(path, dtype=np.uint8, mode="r", offset=len(expected), shape=key.shape)


def _header(key: Key) -> bytes:
    """The first bytes of an .npy file of this shape."""
    head = io.BytesIO()
    npy.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": key.shape})
    return head.getvalue()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error


class _Lock:
    """Held by one process at a time; the kernel takes it from a process that dies."""

    def __init__(self, path: Path, say: Say) -> None:
        self._path, self._say = path, say
        self._lock = FileLock(f"{path}.lock")

    def __enter__(self) -> None:
        waits = False
        while True:
            try:
                self._lock.acquire(timeout=POLL_EVERY_S)
                return
            except Timeout:
                if not waits:
                    self._say(f"Another process is drawing {self._path.name}: waiting for it.")
                waits = True
            except OSError as error:
                raise _unwritable(self._path.parent, error) from error

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _draw(path: Path, key: Key, processes: int, say: Say) -> None:
    """Draws what is missing, part by part, and gives the file its name once it is whole and on the disk."""
    header = _header(key)
    partial, noted = Path(f"{path}.partial"), Path(f"{path}.progress")
    pixels = key.look.height * key.look.width
    try:
        with open(os.open(partial, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file, open(noted, "a+", encoding="ascii") as notes:
            _reserve(file.fileno(), len(header) + int(np.prod(key.shape)))
            file.write(header)
            done = _done(file, notes, len(header), pixels, key.count)
            missing = [start for start in range(0, key.count, PART) if start not in done]
            for start, images in draw_parts(key, missing, PART, processes, say):
                file.seek(len(header) + start * pixels)
                file.write(images)
                file.flush()
                os.fsync(file.fileno())
                notes.write(f"{start} {zlib.crc32(images)}\n")
                notes.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        noted.unlink()
    except OSError as error:
        if DiskFull.caused(error):
            raise _disk_full(path, key, partial) from error
        raise _unwritable(path.parent, error) from error


def _reserve(descriptor: int, size: int) -> None:
    """Takes the whole room at once, so that a disk without it says so before anything is drawn. Raises OSError.

    What is free is asked first, and what was taken is given back where it does not do: a full disk is everybody's.
    """
    before, disk = os.fstat(descriptor), os.fstatvfs(descriptor)
    if size - before.st_blocks * _BLOCK_BYTES > disk.f_bavail * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        os.posix_fallocate(descriptor, 0, size)
    except AttributeError:  # macOS
        os.ftruncate(descriptor, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            os.ftruncate(descriptor, before.st_size)
            raise
        os.ftruncate(descriptor, size)


def _done(file: BinaryIO, notes: TextIO, begin: int, pixels: int, count: int) -> set[int]:
    """Starts of the parts that an earlier process drew: noted, and with the checksum that was noted."""
    notes.seek(0)
    done: set[int] = set()
    for line in notes.read().splitlines():
        words = line.split()
        if len(words) == 2 and all(word.isdecimal() for word in words):
            start, checksum = map(int, words)
            file.seek(begin + start * pixels)
            if start < count and zlib.crc32(file.read(min(PART, count - start) * pixels)) == checksum:
                done.add(start)
    return done


def _unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"Images cannot be kept in {folder}: {error.strerror}.",
        "They are drawn once and kept there, so the folder must be writable.",
        "Choose another one with --cache.",
    )


def _disk_full(path: Path, key: Key, partial: Path) -> DiskFull:
    return DiskFull(
        str(path),
        kept=f"what was drawn so far, in {partial.name}; the next run goes on from there",
        problem=f"The disk is full: the {key.count:,} images take {format_bytes(int(np.prod(key.shape)))} in {path.parent}.",
        suggestion="Free some space, ask for fewer images with --samples, or choose a folder on another disk with --cache.",
    )


def images_of(options: ImageOptions, say: Say) -> tuple[Captchas, Captchas]:
    """(training, held-out), drawn now where they are not in the cache. Other seeds; labels may recur, images may not."""
    folder = options.cache or cache_folder()
    processes = options.draw_processes or cores()
    look, seed = options.look, options.image_seed
    train = captchas(Key(f"train {seed}", options.samples, look), folder, processes, say)
    valid = captchas(Key(f"valid {seed}", options.eval_samples, look), folder, processes, say)
    return train, held_out(train, valid, say)


def held_out(train: Captchas, valid: Captchas, say: Say) -> Captchas:
    """`valid` without the images that are among the training images as well, which are counted in a message.

    Seeds alone do not promise it: of tiny images of one character the same may be drawn twice.
    """
    shared = shared_with(train.images, valid.images)
    if not shared.any():
        return valid
    left = int((~shared).sum())
    if not left:
        raise UsageError(
            f"All {len(shared):,} held-out images are among the training images too.",
            "Images this small and plain repeat themselves, so nothing would be measured.",
            "Make them larger (--height, --width) or longer (--length).",
        )
    say(f"{int(shared.sum()):,} of {len(shared):,} held-out images are among the training images too: {left:,} are measured.")
    return Captchas(valid.images[~shared], valid.labels[~shared], valid.path)


def shared_with(train: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Which rows of `valid` (count, height, width) are bytes that some row of `train` has as well. (count,) bool."""
    seen = set(map(_digest, train))
    return np.array([_digest(image) in seen for image in valid], dtype=bool)


def _digest(image: np.ndarray) -> bytes:
    return hashlib.blake2b(image.tobytes(), digest_size=16).digest()
