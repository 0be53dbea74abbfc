"""The captcha example script on the reduced images of bench/captcha.py:
`python -m bench.captcha_example DATA [its own flags]`.

examples/captcha/train.py as it stands, but for the four constants of its images, and for where
these come from: DATA holds train/ and valid/ with PNG files that are drawn already, the same for
every seed.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "captcha"))

import train  # the example script, found by the line above

ALPHABET, LENGTH, HEIGHT, WIDTH = "0123456789", 4, 24, 64


def drawn(folder: Path, count: int, seed: str) -> list[Path]:
    paths = sorted((folder.parent / seed.split()[0]).glob("*.png"))
    if len(paths) != count:
        sys.exit(f"{folder.parent / seed.split()[0]} has {len(paths)} images, not {count}")
    return paths


def main() -> None:
    data = sys.argv.pop(1)
    train.ALPHABET, train.LENGTH, train.HEIGHT, train.WIDTH = ALPHABET, LENGTH, HEIGHT, WIDTH
    train.draw_captchas = drawn
    sys.argv += ["--data", data]
    train.main()


if __name__ == "__main__":
    main()
