"""brimful in one environment, the script in another that has torch and nothing of ours (as with
pipx).
"""

import importlib.util
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.brimful.end_to_end.helper import TRAINING, brimful, script

# What torch itself imports (its wheel's metadata), and what setuptools gave it.
NEEDED = (
    "torch",
    "torchgen",
    "functorch",
    "numpy",
    "numpy.libs",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "filelock",
    "fsspec",
    "typing_extensions.py",
)
OURS = ("brimful", "msgspec", "rich", "cyclopts", "psutil", "altair", "pynvml")


@pytest.fixture(scope="module")
def other_python(tmp_path_factory) -> Path:
    """A virtual environment with links to torch and to what torch needs."""
    place = tmp_path_factory.mktemp("other") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    spec = importlib.util.find_spec("torch")
    for home in {Path(spec.origin).parents[1], Path(sysconfig.get_path("purelib"))}:
        for name in NEEDED:
            link = Path(site) / name
            if (home / name).exists() and not link.exists():
                link.symlink_to(home / name)
    return python


@pytest.mark.parametrize("where", [("--device", "cpu"), ("--gpu-memory", "4GiB")])
def test_the_child_needs_torch_alone(tmp_path, other_python, where):
    shown = (
        "import sys; print('MODULES', *sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    done = brimful(
        tmp_path,
        "audit",
        *where,
        "--steps",
        3,
        "--json",
        "--",
        other_python,
        script(tmp_path, TRAINING + shown, samples=64),
        "--batch-size",
        8,
        PYTHONPATH="",
        code=0,
    )
    assert done.json["effective"]["loader_batch_size"] == 8
    line = next(
        line
        for line in (done.trial / "stdout.txt").read_text().splitlines()
        if line.startswith("MODULES")
    )
    imported = set(line.split()[1:])
    assert {"torch", "brimful_inside"} <= imported, "the probe was there"
    assert not imported & set(OURS)


def test_a_python_without_torch_is_reported_with_its_own_error(tmp_path, other_python):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    done = brimful(
        tmp_path,
        "audit",
        "--device",
        "cpu",
        "--",
        bare / "bin" / "python",
        script(tmp_path),
        "--batch-size",
        8,
        code=5,
    )
    assert "No module named 'torch'" in done.err
