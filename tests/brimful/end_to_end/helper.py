"""Calls brimful as a user does: a process of its own, in a folder of its own, with records kept
apart.
"""

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil
import pytest

from brimful.record import list_records, read_record
from brimful.values import Record
from tests.conftest import WITHOUT_DYNAMO

EXAMPLES = Path(__file__).parents[3] / "examples"
TRAPS = EXAMPLES / "traps"

#: An ordinary small training. What a test changes is put in by `script`.
TRAINING = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
inputs = torch.randn(SAMPLES, 64)
data = TensorDataset(inputs, inputs.mean(1, keepdim=True))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for features, targets in loader:
    loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""


@dataclass(frozen=True)
class Done:
    """One call of brimful."""

    code: int
    out: str
    err: str
    home: Path

    @cached_property
    def json(self) -> dict:
        return json.loads(self.out)

    @cached_property
    def record(self) -> Record:
        """The latest record, as it can be read back."""
        records = list_records(self.home)
        assert records, self.err
        return read_record(records[-1])

    @property
    def trial(self) -> Path:
        """The folder of the last trial."""
        return Path(self.record.folder) / self.record.trials[-1].folder


def script(
    folder: Path, source: str = TRAINING, name: str = "train.py", samples: int = 512
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(textwrap.dedent(source).replace("SAMPLES", str(samples)))
    return path


LIMIT_S = 280  # of one call; pytest's own limit for a test is 300


def environment(home: Path, **more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "BRIMFUL_TRIAL_CONFIG")
    }
    # A trial must not depend on how many cores the machine has, nor on a malloc that somebody set
    # for the tests.
    return {**kept, "BRIMFUL_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE, **more}


SOURCE = os.pathsep.join((str(Path(__file__).parents[3] / "src"), WITHOUT_DYNAMO))


def start(
    tmp_path: Path, *words: object, home: Path | None = None, cwd: Path | None = None, **more: str
) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "brimful", *map(str, words)],
        cwd=cwd or tmp_path,
        env=environment(home or tmp_path / "home", **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def brimful(
    tmp_path: Path,
    *words: object,
    code: int | None = None,
    home: Path | None = None,
    cwd: Path | None = None,
    **more: str,
) -> Done:
    """One call, to its end; `code`: the exit code that it has to have."""
    process = start(tmp_path, *words, home=home, cwd=cwd, **more)
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"not over after {LIMIT_S} s:\n{_killed(process)}")
    assert code in (None, process.returncode), (process.returncode, err)
    return Done(process.returncode, out, err, home or tmp_path / "home")


def _killed(process: subprocess.Popen) -> str:
    """What its processes were doing, and what it had said."""
    family = psutil.Process(process.pid).children(recursive=True)
    doing = "\n".join(f"{each.pid} {each.status()}: {each.cmdline()}" for each in family)
    for each in (process, *family):
        each.kill()
    return f"{doing}\n{process.communicate()[1]}"


def python(path: Path | str, *arguments: object) -> list[str]:
    """A user's command: this Python, a script, its arguments."""
    return ["--", sys.executable, str(path), *map(str, arguments)]


def torchrun(path: Path, *arguments: object) -> list[str]:
    """The same with two ranks."""
    return [
        "--",
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        "0",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
        str(path),
        *map(str, arguments),
    ]


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A disk of that size, where one can be had."""
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place]).returncode
    ):
        pytest.skip("no small disk can be made here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def left_over(home: Path) -> list[psutil.Process]:
    """Living processes that were started for a trial whose records are in `home`."""
    found = []
    for process in psutil.process_iter():
        try:
            config = process.environ().get("BRIMFUL_TRIAL_CONFIG", "")
            if config.startswith(str(home.resolve())) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
