"""What the tests of all recipes share: messages that are kept, and commands in processes."""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from recipes.common import running
from tests.brimful_train.ledger import fork

# The tests of a recipe whose extra is not installed are left out; a package of each extra.
EXTRAS = {"captcha": "captcha", "chatlm": "sacrebleu", "ood_dpo": "rdkit"}
collect_ignore = [folder for folder, package in EXTRAS.items() if find_spec(package) is None]

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
    """`python -m recipes.RECIPE WORDS`, by torchrun with `ranks`; else in a fork of this process,
    which has torch already. What has threads that a fork does not get is a process of its own: the
    tokenizers of chatlm, and autograd beside an accelerator.
    """
    argv = [*map(str, words)]
    if ranks or recipe == "chatlm" or torch.accelerator.is_available():
        launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m")
        command = [sys.executable, "-m", *(launcher if ranks else ()), f"recipes.{recipe}", *argv]
        pipes = {"env": environment(), "input": typed, "capture_output": True, "text": True}
        done = subprocess.run(command, timeout=280, **pipes)
    else:
        with tempfile.TemporaryDirectory() as folder:
            pid = started(recipe, argv, Path(folder), typed)
            try:
                ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            except BaseException:  # the test took too long
                os.kill(pid, signal.SIGKILL)
                raise
            shown = [Path(folder, f"recipe.{name}").read_text() for name in ("out", "err")]
        done = subprocess.CompletedProcess(argv, ended, *shown)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def started(recipe: str, argv: Sequence[str], folder: Path, typed: str = "") -> int:
    """The process id of a fork that does what `python -m recipes.RECIPE` does; what it says is in
    recipe.out and recipe.err."""

    def work() -> None:
        os.environ.clear()
        os.environ.update(environment())
        (folder / "typed").write_text(typed)
        sys.stdin, sys.argv = (folder / "typed").open(), ["", *argv]
        app = importlib.import_module(f"recipes.{recipe}.__main__").app
        raise SystemExit(running.run(app, argv))

    return fork(work, folder / "recipe")


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
