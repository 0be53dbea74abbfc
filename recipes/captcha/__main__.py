"""`python -m recipes.captcha`: train, draw the images alone, or read images."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from brimful import __version__
from brimful_train.config import Config
from recipes.captcha.images import Count, ImageOptions
from recipes.captcha.presets import LARGE_BATCH, ORIGINAL, TUNED, TUNED_ON_A_CARD
from recipes.common.running import Presets, run, say

presets = Presets(TUNED, LARGE_BATCH, ORIGINAL, on_a_card=TUNED_ON_A_CARD)
app = App(
    name="python -m recipes.captcha",
    version=__version__,
    help="Train a network to read captchas, and read them.",
    help_epilogue="On several cards: torchrun --nproc-per-node 3 -m recipes.captcha",
    config=presets.apply,
    default_parameter=Parameter(show_default=False),  # a preset has others
)
NO_IMAGES, NO_SETTINGS = ImageOptions(), Config(out=Path("out/captcha"))


@app.default
def train(
    *,
    preset: str = presets.default,
    images: ImageOptions = NO_IMAGES,
    host_allocator: Literal["keep", "system"] = "system",
    config: Config = NO_SETTINGS,
) -> None:
    """Train.

    Parameters
    ----------
    preset
        tuned, large-batch or original. Any flag overrides it.
    host_allocator
        keep (glibc keeps freed memory for the next tensor) or system (as it is).
    """
    from recipes.captcha import recipe

    recipe.train(config, images, host_allocator, f"captcha, preset {preset}", presets.rows)


@app.command
def draw(*, images: ImageOptions = NO_IMAGES) -> None:
    """Draw the images into the cache and end."""
    from recipes.captcha.cache import images_of

    for drawn in images_of(images, say):
        print(drawn.path)


@app.command
def read(
    paths: list[Path],
    /,
    *,
    checkpoint: Path = Path("out/captcha"),
    batch_size: Count = 256,
    device: str = "auto",
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Read images with a trained network: a line for each, its file and its text.

    Parameters
    ----------
    paths
        Image files, or folders of them.
    checkpoint
        The --out of a training (its best checkpoint), or one checkpoint.
    batch_size
        Images at once.
    device
        auto, cpu, cuda ...
    json
        One JSON object a line.
    """
    from recipes.captcha.reading import read_images, show

    return show(read_images(paths, checkpoint, batch_size, device), as_json=json)


if __name__ == "__main__":
    sys.exit(run(app, sys.argv[1:]))
