"""`make recipe-captcha`: the captcha recipe on a small task, on this machine, from drawing the
images to reading some.

Draws captchas of 4 digits, trains the reader on them, and lets it read pictures that it has not
met. A few minutes on 2 cores; --samples 2048 --epochs 1 shows the way in one, and learns nothing.
The same command goes on where it was killed; a training that came to its end is not begun again.
"""

import argparse
import json
import sys
from pathlib import Path

from PIL import Image

from examples.steps import run, step
from recipes.captcha.images import DIGITS, Look, Painter, texts

HERE = Path(__file__).parent
RECIPE = (sys.executable, "-m", "recipes.captcha")
HEIGHT, WIDTH = 24, 64
PICTURES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "captcha" / "out" / "recipe")
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--epochs", type=float, default=1.25)
    args = parser.parse_args()
    out: Path = args.out
    images = ("--digits", "--height", HEIGHT, "--width", WIDTH, "--samples", args.samples)
    images += ("--eval-samples", 512, "--cache", out / "cache")

    step("Draw the images")
    run(*RECIPE, "draw", *images)

    step("Train")
    training = out / "training"
    where = ("--out", training, "--device", "cpu")
    run(*RECIPE, *images, "--epochs", args.epochs, *where)
    measures = json.loads((training / "training_stats.json").read_text())["measures"]
    print(f"Read without a mistake, of 512 held-out images: {measures['exact']:.1%}")

    step("Read pictures that it has not met")
    folder = out / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    look = Look(DIGITS, height=HEIGHT, width=WIDTH)
    painter = Painter(look)
    for number, text in enumerate(texts("recipe-captcha", PICTURES, look)):
        pixels = painter.draw("recipe-captcha", number, text)
        Image.fromarray(pixels).save(folder / f"{text}.png")
    run(*RECIPE, "read", folder, "--checkpoint", training, "--device", "cpu")


if __name__ == "__main__":
    main()
