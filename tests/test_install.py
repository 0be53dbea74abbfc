"""The wheel alone, in an empty environment, predicts a script whose own environment has torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "gpt" / "train.py"
SMALL = ("--layers", "1", "--width", "64", "--context", "32", "--words", "100")
NOT_THERE = ("torch", "numpy", "safetensors", "recipes")


def output_of(*argv: str | Path, folder: Path) -> str:
    """What a command printed; it sees no package of this process; its records go to `folder`."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=folder,
        env={**environment, "BRIMFUL_HOME": str(folder / "records"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.heavy
@pytest.mark.slow
def test_the_wheel_in_an_empty_environment_predicts_a_script_of_another(tmp_path: Path):
    output_of(
        sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", ".", ROOT, folder=tmp_path
    )
    (wheel,) = tmp_path.glob("brimful-*.whl")
    packages = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in packages if not name.endswith(".dist-info")} == {
        "brimful",
        "brimful_inside",
        "brimful_train",
    }

    place = tmp_path / "tool"
    output_of(sys.executable, "-m", "venv", "--without-pip", place, folder=tmp_path)
    output_of(sys.executable, "-m", "pip", "--python", place, "install", wheel, folder=tmp_path)
    installed = place / "bin"
    importable = output_of(
        installed / "python",
        "-c",
        f"import importlib.util as u; print([n for n in {NOT_THERE!r} if u.find_spec(n)])",
        folder=tmp_path,
    )
    assert importable.strip() == "[]"

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
