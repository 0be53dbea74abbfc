"""A small task that a test trains in seconds, and its images, drawn once a session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    pytest.importorskip("captcha")
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


def environment() -> dict[str, str]:
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "BRIMFUL_TRIAL_CONFIG", "MALLOC_MMAP_MAX_")
    return {**{k: v for k, v in os.environ.items() if k not in hidden}, "OMP_NUM_THREADS": "1"}


def run_recipe(
    cache: Path | None, *flags: object, code: int = 0, ranks: int = 0
) -> subprocess.CompletedProcess[str]:
    """`python -m recipes.captcha FLAGS --cache CACHE`, by torchrun with `ranks`."""
    program = [sys.executable, "-m"]
    if ranks:
        program += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    words = [
        *program,
        "recipes.captcha",
        *last_of_each(*flags),
        *(["--cache", str(cache)] if cache else []),
    ]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
