"""What the captcha recipe can be told besides what all recipes share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from brimful.errors import UsageError
from brimful.recipes.captcha.images import ALPHABET, DIGITS, Look

__all__ = ["ImageOptions"]

IMAGES = Group("Images", sort_key=0)


@Parameter(name="*")
@dataclass(frozen=True)
class ImageOptions:
    """The images and the network's size."""

    samples: Annotated[int, Parameter(group=IMAGES)] = 50_000
    """Training images."""
    eval_samples: Annotated[int, Parameter(group=IMAGES)] = 5_000
    """Held-out images, none of which is among the training images."""
    alphabet: Annotated[str | None, Parameter(group=IMAGES)] = None
    """The characters shown; digits and capital letters if it is not said."""
    digits: Annotated[bool, Parameter(group=IMAGES, negative="")] = False
    """Digits alone."""
    length: Annotated[int, Parameter(group=IMAGES)] = 4
    """Characters of an image."""
    height: Annotated[int, Parameter(group=IMAGES)] = 60
    """Of an image, in pixels; other sizes are scaled from 60 × 160."""
    width: Annotated[int, Parameter(group=IMAGES)] = 160
    """Of an image, in pixels."""
    font: Annotated[tuple[str, ...], Parameter(group=IMAGES, negative="")] = ()
    """A TrueType file to draw with, in place of the captcha package's own. May be repeated."""
    image_seed: Annotated[int, Parameter(group=IMAGES)] = 0
    """Of the images; --seed is the training's."""
    dropout: Annotated[float, Parameter(group=IMAGES)] = 0.25
    """Before the last layer."""
    cache: Annotated[Path | None, Parameter(group=IMAGES)] = None
    """Where drawn images are kept; else brimful/captcha in XDG_CACHE_HOME (~/.cache)."""
    draw_processes: Annotated[int | None, Parameter(group=IMAGES)] = None
    """Processes that draw; one for each core if it is not said."""

    def __post_init__(self) -> None:
        if self.digits and self.alphabet not in (None, DIGITS):
            raise UsageError(
                f"--digits and --alphabet {self.alphabet}", "both say which characters are shown", "give one of them"
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(f"--dropout {self.dropout}", "it is a share of 0 or more and less than 1", "give 0.25, say")
        for name, count in (("--samples", self.samples), ("--eval-samples", self.eval_samples)):
            if count < 1:
                raise UsageError(f"{name} {count}", "a data set has 1 image at least", "ask for 1 or more")
        if self.draw_processes is not None and self.draw_processes < 1:
            raise UsageError(f"--draw-processes {self.draw_processes}", "one at least draws", "give 1 or more")

    @property
    def look(self) -> Look:
        alphabet = DIGITS if self.digits else self.alphabet or ALPHABET
        return Look(alphabet, self.length, self.height, self.width, self.font)
