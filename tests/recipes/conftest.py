"""What the tests of all recipes share: messages that are kept, and commands in processes."""

import io
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

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
    """`python -m recipes.RECIPE WORDS`, by torchrun with `ranks`.

    Without, it is a fork of this process, which has imported torch and the recipe already: that
    takes a process of its own some seconds (`on_ranks` of the engine's tests does so too).
    """
    argv = [f"recipes.{recipe}", *map(str, words)]
    if ranks or torch.accelerator.is_available():
        launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m")
        done = subprocess.run(
            [sys.executable, "-m", *(launcher if ranks else ()), *argv],
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


def _forked(argv: list[str], typed: str) -> subprocess.CompletedProcess[str]:
    def work() -> None:
        os.environ.clear()
        os.environ.update(environment(), TOKENIZERS_PARALLELISM="false")  # its threads stay behind
        sys.argv, sys.stdin = argv, io.StringIO(typed)
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)

    with tempfile.TemporaryDirectory() as folder:
        pid = fork(work, Path(folder) / "said")
        try:
            status = os.waitpid(pid, 0)[1]
        except BaseException:  # the test took too long
            os.kill(pid, signal.SIGKILL)
            raise
        out, err = (Path(folder, f"said.{name}").read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(argv, os.waitstatus_to_exitcode(status), out, err)


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
