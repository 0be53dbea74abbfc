"""Captcha images: what they look like, and how one is drawn. No torch: the processes that draw
import this alone.

An image depends on (seed, number, look) and nothing else, so images can be drawn in any order by
any number of processes. At
60 × 160 they are those of examples/captcha/train.py, pixel by pixel.
"""

import hashlib
import importlib
import json
import random
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Group, Parameter, validators

from brimful.errors import UsageError

Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]
DIGITS = "0123456789"
ALPHABET = DIGITS + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# The size at which the package's noise and fonts were made to be seen; other sizes are scaled from
# it.
DRAWN_HEIGHT, DRAWN_WIDTH = 60, 160
FORMAT = 1  # of the cached arrays: raise it with any change that changes pixels
LEAST_PIXELS = 8  # the network halves height and width three times


@dataclass(frozen=True)
class Look:
    """What all images of a data set have in common."""

    alphabet: str = ALPHABET
    length: int = 4
    height: int = DRAWN_HEIGHT
    width: int = DRAWN_WIDTH

    def __post_init__(self) -> None:
        _require(
            0 < len(self.alphabet) == len(set(self.alphabet)),
            f"--alphabet {self.alphabet!r} has no character, or one twice",
            "each character is a class of its own, given once",
        )
        _require(
            len(self.alphabet) <= 256,
            f"--alphabet has {len(self.alphabet)} characters",
            "labels are kept in a byte",
        )
        least = f"the network halves height and width three times: give {LEAST_PIXELS} or more"
        for name, pixels in (("--height", self.height), ("--width", self.width)):
            _require(pixels >= LEAST_PIXELS, f"{name} {pixels}", least)


@Parameter(name="*", group=Group("Images", sort_key=0))
@dataclass(frozen=True)
class ImageOptions:
    """The images and the network's size."""

    samples: Count = 50_000
    """Training images."""
    eval_samples: Count = 5_000
    """Held-out images, none of which is among the training images."""
    alphabet: str | None = None
    """The characters shown; digits and capital letters without it."""
    digits: Annotated[bool, Parameter(negative="")] = False
    """Digits alone."""
    length: Count = 4
    """Characters of an image."""
    height: int = 60
    """Of an image, in pixels; other sizes are scaled from 60 × 160."""
    width: int = 160
    """Of an image, in pixels."""
    image_seed: int = 0
    """Of the images; --seed is the training's."""
    dropout: Annotated[float, Parameter(validator=validators.Number(gte=0, lt=1))] = 0.25
    """Before the last layer."""
    cache: Path | None = None
    """Where drawn images are kept; else brimful/captcha in XDG_CACHE_HOME (~/.cache)."""
    draw_processes: Count | None = None
    """Processes that draw; one for each core without it."""

    def __post_init__(self) -> None:
        _require(
            not self.digits or self.alphabet in (None, DIGITS),
            f"--digits and --alphabet {self.alphabet}",
            "both name the characters: give one of them",
        )

    @property
    def look(self) -> Look:
        alphabet = DIGITS if self.digits else self.alphabet or ALPHABET
        return Look(alphabet, self.length, self.height, self.width)


def _require(holds: bool, setting: str, why: str) -> None:
    if not holds:
        raise UsageError(f"{setting}: {why}.", suggestion="--help lists what each option takes.")


def texts(seed: str, count: int, look: Look) -> list[str]:
    """The texts of the images numbered 0 to count - 1."""
    source = random.Random(seed)
    return ["".join(source.choices(look.alphabet, k=look.length)) for _ in range(count)]


def package_versions() -> dict[str, str]:
    """Of the packages that draw: another version may draw other pixels."""
    try:
        return {"captcha": version("captcha"), "pillow": version("pillow")}
    except PackageNotFoundError as error:
        raise UsageError(
            f"The Python package {error.name} is not installed.",
            "The captcha recipe draws its images with it.",
            "pip install '.[train,captcha]'",
        ) from None


class Painter:
    """Draws images of one look, with the captcha package's own font. Make one a process."""

    def __init__(self, look: Look) -> None:
        self.look = look
        package_versions()
        self._module: Any = importlib.import_module("captcha.image")
        self._captcha = self._module.ImageCaptcha(width=DRAWN_WIDTH, height=DRAWN_HEIGHT)

    def draw(self, seed: str, number: int, text: str) -> np.ndarray:
        """(height, width) uint8, grey; another size than 60 × 160 is scaled from it."""
        before = self._module.secrets
        self._module.secrets = _Seeded(f"{seed}/{number}")
        try:
            picture = self._captcha.generate_image(text).convert("L")
        finally:
            self._module.secrets = before
        if picture.size != (self.look.width, self.look.height):
            picture = scaled(picture, self.look.height, self.look.width)
        return np.asarray(picture, dtype=np.uint8)


def scaled(picture: Any, height: int, width: int) -> Any:
    """A Pillow image in another size, as the data sets of that size are made: averaged over what
    each pixel covers.
    """
    from PIL.Image import Resampling

    return picture.resize(
        (width, height), Resampling.BOX if width < picture.width else Resampling.BILINEAR
    )


class _Seeded:
    """Stands in for the `secrets` module inside the captcha package, so that a seed gives the same
    image again.
    """

    def __init__(self, seed: str) -> None:
        source = random.Random(seed)
        self.randbelow, self.randbits = source.randrange, source.getrandbits
        self.choice = source.choice


@dataclass(frozen=True)
class Key:
    """What decides the pixels of a data set of `count` images, besides the versions of the packages
    that draw.
    """

    seed: str
    count: int
    look: Look

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.count, self.look.height, self.look.width

    @property
    def file_name(self) -> str:
        content = {"format": FORMAT, "key": asdict(self), "versions": package_versions()}
        text = json.dumps(content, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
        seed = "".join(letter if letter.isalnum() else "-" for letter in self.seed)
        size = "x".join(map(str, self.shape))
        return f"{seed}_{size}_{self.look.length}of{len(self.look.alphabet)}-{digest}.npy"
