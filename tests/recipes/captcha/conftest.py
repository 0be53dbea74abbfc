"""A small task that a test trains in seconds, and its images, drawn once a session."""

import subprocess
from pathlib import Path

import pytest

from tests.recipes.conftest import run

SMALL = (
    *(
        "--digits",
        "--length",
        "2",
        "--height",
        "16",
        "--width",
        "32",
        "--samples",
        "96",
        "--eval-samples",
        "24",
    ),
    *("--device", "cpu", "--precision", "fp32"),
)


@pytest.fixture(scope="session")
def images_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captchas")
    run_recipe(folder, "draw", *SMALL[: SMALL.index("--device")], "--draw-processes", "1")
    return folder


def last_of_each(*flags: object) -> list[str]:
    """The command line without those flags that are given again behind."""
    words, values = [], {}
    for word in map(str, flags):
        if word.startswith("--"):
            name = word
            values[name] = []
        elif values:
            values[name].append(word)
        else:
            words.append(word)
    return words + [word for name, given in values.items() for word in (name, *given)]


def run_recipe(
    cache: Path | None, *flags: object, code: int = 0, ranks: int = 0
) -> subprocess.CompletedProcess[str]:
    """`python -m recipes.captcha FLAGS --cache CACHE`."""
    place = ("--cache", cache) if cache else ()
    return run("captcha", *last_of_each(*flags), *place, code=code, ranks=ranks)
