"""Each import contract of pyproject.toml can fail; that they hold is what `make check` shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A line, and the file that must not hold it: one at least for each contract.
VIOLATIONS = {
    "src/brimful_inside/__init__.py": "import brimful.values",
    "src/brimful_inside/simulator/__init__.py": "import torch",
    "src/brimful_inside/imaginary/state/__init__.py": "import brimful_inside.imaginary.install",
    "src/brimful/errors.py": "import brimful.codec",
    "src/brimful/units.py": "import msgspec",
    "src/brimful/decide/__init__.py": "import torch, brimful.record",
    "src/brimful/integrations/attempts.py": "import brimful.integrations.lightning",
    "src/brimful_train/__init__.py": "import recipes",
    "src/brimful_train/checkpoints/__init__.py": "import pickle",
    "src/brimful_train/config.py": "import brimful_train.engine",
    "recipes/captcha/__init__.py": "import recipes.chatlm, brimful.decide",
}


def test_every_contract_is_broken_by_a_line_that_it_forbids(tmp_path: Path):
    for folder in ("src", "recipes"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, line in VIOLATIONS.items():
        with open(tmp_path / name, "a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")

    program = "from importlinter.cli import lint_imports_command as lint; lint()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    configured = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = configured["tool"]["importlinter"]["contracts"]
    broken = re.findall(r"^(.+) BROKEN", done.stdout, flags=re.MULTILINE)
    assert {contract["name"] for contract in contracts} == set(broken), done.stdout + done.stderr
