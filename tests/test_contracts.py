"""The import contracts of pyproject.toml hold, and each of them can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VIOLATIONS = {
    "brimful_inside imports brimful": ("brimful_inside/wire.py", "import brimful.values"),
    "the simulator imports torch": ("brimful_inside/simulator/trace.py", "import torch"),
    "the state of the imaginary GPU imports a handler": (
        "brimful_inside/imaginary/state/clock.py",
        "import brimful_inside.imaginary.operators.flops",
    ),
    "deciding imports torch": ("brimful/decide/__init__.py", "import torch"),
    "deciding imports what measures": (
        "brimful/decide/__init__.py",
        "import brimful.measure.trial",
    ),
    "showing starts a verb": ("brimful/show/__init__.py", "import brimful.verbs.audit"),
    "the engine imports a recipe": ("brimful_train/task.py", "import recipes"),
    "the engine starts a verb": ("brimful_train/task.py", "import brimful.verbs.audit"),
    "a checkpoint imports a pickler": (
        "brimful_train/checkpoints/folder.py",
        "from pickle import loads",
    ),
    "a verb imports the engine": ("brimful/verbs/audit.py", "import brimful_train.task"),
    "values import what stands above": ("brimful/values/__init__.py", "import brimful.codec"),
}


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """The contracts, checked on the sources in `folder`."""
    program = (
        f"import sys; sys.path.insert(0, {str(folder / 'src')!r}); from importlinter.cli import "
        "lint_imports_command as c; c()"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def copy_of_the_sources(tmp_path: Path) -> Path:
    for folder in ("src", "recipes"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(copy_of_the_sources: Path):
    done = lint_imports(copy_of_the_sources)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_broken_contract_is_seen(violation: str, copy_of_the_sources: Path):
    name, line = VIOLATIONS[violation]
    path = copy_of_the_sources / "src" / name
    path.write_text(path.read_text(encoding="utf-8") + f"\n{line}\n", encoding="utf-8")
    done = lint_imports(copy_of_the_sources)
    assert done.returncode == 1 and "BROKEN" in done.stdout, done.stdout + done.stderr
