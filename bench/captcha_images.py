"""The images of bench/captcha.py: once in the recipe's cache, and once as the PNG files that the
example script reads.
"""

import sys
from pathlib import Path

from PIL import Image

from bench.captcha_example import ALPHABET, HEIGHT, LENGTH, WIDTH
from recipes.captcha.cache import Captchas, images_of
from recipes.captcha.images import ImageOptions

FLAGS = ("--digits", "--length", str(LENGTH), "--height", str(HEIGHT), "--width", str(WIDTH))


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


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
    both = images_of(options, say)
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
