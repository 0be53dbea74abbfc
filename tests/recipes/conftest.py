"""What the tests of all recipes share: messages that are kept, and commands in processes."""

import io
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

# The tests of a recipe whose extra is not installed are left out; a package of each extra.
EXTRAS = {"captcha": "captcha", "chatlm": "sacrebleu", "ood_dpo": "rdkit"}
collect_ignore = [folder for folder, package in EXTRAS.items() if find_spec(package) is None]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [f"recipes.{name}.recipe" for name in EXTRAS if name not in collect_ignore]
)

# of whoever starts the tests
HIDDEN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "BRIMFUL_TRIAL_CONFIG", "MALLOC_MMAP_MAX_")


RUNNING = ("running_mean", "running_var", "num_batches_tracked")


class Messages(list):
    def __call__(self, sentence: str) -> None:
        self.append(sentence)

    @property
    def text(self) -> str:
        return "\n".join(self)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(
    recipe: str, *words: object, code: int = 0, ranks: int = 0, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python -m recipes.RECIPE WORDS`, by torchrun with `ranks`.

    Without, it is a fork of a process that has imported torch and the recipes already: that takes
    a process of its own some seconds. Not of this one, whose libraries may have threads.
    """
    argv = [f"recipes.{recipe}", *map(str, words)]
    if ranks:
        launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m")
        done = subprocess.run(
            [sys.executable, "-m", *launcher, *argv],
            env=environment(),
            input=typed,
            capture_output=True,
            text=True,
            timeout=280,
        )
    else:
        done = _forked(argv, typed)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def started(argv: list[str], folder: str, typed: str = "") -> BaseProcess:
    """A fork that does what `python -m` does with `argv`; what it says is in `folder`: out, err."""
    process = _FORKS.Process(target=_as_command, args=(argv, typed, environment(), folder))
    process.start()
    return process


def _forked(argv: list[str], typed: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        process = started(argv, folder, typed)
        process.join(280)
        if process.is_alive():
            process.kill()
            process.join()
        out, err = (Path(folder, name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(argv, process.exitcode or 0, out, err)


def _as_command(argv: list[str], typed: str, variables: dict[str, str], folder: str) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), number)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(typed), os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


def events(out: Path, kind: str) -> list[dict[str, Any]]:
    """Of a training's log."""
    rows = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    return [row for row in rows if row["event"] == kind]


def newest_weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(sorted((out / "checkpoints").glob("step-*"))[-1] / "model.safetensors")


def difference(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    """The largest one, of all weights but the running averages of a batch normalization."""
    assert some.keys() == others.keys()
    names = [name for name in some if not name.endswith(RUNNING)]
    return max((some[name] - others[name]).abs().max().item() for name in names)
