"""What is published: the archives' contents, and the wheel alone, in an empty environment of each
Python that is here, which predicts a script whose own environment has torch.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "gpt" / "train.py"
SMALL = ("--layers", "1", "--width", "64", "--context", "32", "--words", "100")
PACKAGES = {"brimful", "brimful_inside", "brimful_train"}
PLAIN_FILES = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}
NOT_THERE = ("torch", "numpy", "safetensors", "recipes")


def output_of(*argv: str | Path, folder: Path, **variables: str) -> str:
    """What a command printed; it sees no package of this process; its records go to `folder`."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=folder,
        env=environment | {"BRIMFUL_HOME": str(folder / "records"), "NO_COLOR": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pythons() -> list[str]:
    """The Pythons of this machine that brimful is made for, by PATH and as pyenv keeps them."""
    found = []
    for minor in range(11, 15):
        kept = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python"))
        named = shutil.which(f"python3.{minor}")
        found += [str(kept[-1])] if kept else [named] if named else []
    return found


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, and the wheel that is built from it, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    output_of(*build, folder=folder, PIP_NO_INDEX="1")
    return folder


@pytest.mark.heavy
@pytest.mark.slow
def test_the_archives_hold_the_packages_and_no_tests_recipes_or_results(dist: Path):
    (wheel,), (sdist,) = dist.glob("brimful-*.whl"), dist.glob("brimful-*.tar.gz")
    in_wheel = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in in_wheel}
    assert {name for name in packages if not name.endswith(".dist-info")} == PACKAGES
    assert all(f"{package}/py.typed" in in_wheel for package in ("brimful", "brimful_train"))
    with tarfile.open(sdist) as archive:
        in_sdist = [name.split("/", 1)[1] for name in archive.getnames()]
    tops = {name.split("/")[0] for name in in_sdist}
    assert tops <= {"src", *PLAIN_FILES} and {"src", "pyproject.toml"} <= tops
    assert {name.split("/")[1] for name in in_sdist if name.startswith("src/")} == PACKAGES
    assert not [n for n in (*in_wheel, *in_sdist) if n.endswith((".pyc", ".pickle", ".pt"))]


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("python", pythons())
def test_the_wheel_in_an_empty_environment_predicts_a_script_of_another(
    tmp_path: Path, dist: Path, python: str
):
    (wheel,) = dist.glob("brimful-*.whl")
    place = tmp_path / "tool"
    output_of(python, "-m", "venv", place, folder=tmp_path)
    # Its own pip: that of an older Python does not run in a newer one.
    own = place / "bin" / "python"
    output_of(own, "-m", "pip", "install", wheel, folder=tmp_path)
    installed = place / "bin"
    importable = output_of(
        installed / "python",
        "-c",
        f"import importlib.util as u; print([n for n in {NOT_THERE!r} if u.find_spec(n)])",
        folder=tmp_path,
    )
    assert importable.strip() == "[]"
    version = output_of(installed / "brimful", "--version", folder=tmp_path)
    assert version.strip() == wheel.name.split("-")[1]

    command = (sys.executable, SCRIPT, *SMALL, "--batch-size", "{batch_size}")
    answer = json.loads(
        output_of(
            installed / "brimful",
            *("predict", "--gpu", "a100-40gb", "--max-batch-size", "64", "--json", "--"),
            *command,
            folder=tmp_path,
        )
    )
    assert answer["verdict"] == "fits" and answer["largest_batch_size"] == 64
    output_of(installed / "brimful", "report", "--out", "page.html", folder=tmp_path)
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")
