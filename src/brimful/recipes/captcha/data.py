"""The training and the held-out images, and that they share none."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from brimful.errors import UsageError
from brimful.measure.device.host import cores
from brimful.recipes.captcha.cache import Captchas, Key, Say, cache_folder, captchas
from brimful.recipes.captcha.options import ImageOptions

__all__ = ["held_out", "images_of", "shared_with"]


def images_of(options: ImageOptions, say: Say) -> tuple[Captchas, Captchas]:
    """(training, held-out), drawn now where they are not in the cache. Other seeds; labels may recur, images may not."""
    folder = options.cache or Path(cache_folder())
    processes = options.draw_processes or cores()
    look, seed = options.look, options.image_seed
    train = captchas(Key(f"train {seed}", options.samples, look), folder, processes, say)
    valid = captchas(Key(f"valid {seed}", options.eval_samples, look), folder, processes, say)
    return train, held_out(train, valid, say)


def held_out(train: Captchas, valid: Captchas, say: Say) -> Captchas:
    """`valid` without the images that are among the training images as well, each left out and said.

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
