"""Where a step cannot be replayed because others wait within it, all ranks go back to the last checkpoint together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from brimful.train import BatchingConfig, CheckpointConfig, OptimizerConfig, fit
from brimful.train.restart import Attempt
from tests.train.ledger import ROOT, Faults, environment, farthest, network_config, network_task, weights

HERE = "tests.train.test_restart"
pytestmark = pytest.mark.heavy


def training(folder: str, how: str, fails_at: str) -> None:
    """On rank 1 of the first attempt, call number `fails_at` of forward, backward or evaluation runs out of memory."""
    rank, first = int(os.environ["RANK"]), Attempt.this().number == 0
    place, _, number = fails_at.partition(":")
    task = network_task(faults=Faults([(place, int(number))] if rank == 1 and first else []))
    options = {"parallel": "fsdp2"} if how == "fsdp2" else {"overlap": True}
    config = network_config(
        Path(folder), epochs=4, batch=BatchingConfig(micro_batch=4, accumulation=2), optimizer=OptimizerConfig("sgd", lr=0.1),
        checkpoints=CheckpointConfig(every_epochs=None, every_steps=2), clip_norm=1.0, **options,
    )  # fmt: skip
    with mock.patch("brimful.train.step.OVERLAP_AFTER", 5):
        fit(task, config)
    if rank == 0:
        attempt = Attempt.this()
        Path(folder, "attempt.json").write_text(json.dumps(vars(attempt)))


def under_torchrun(folder: Path, how: str, fails_at: str) -> subprocess.CompletedProcess[str]:
    program = folder / "train.py"
    program.write_text(f"import sys\nfrom {HERE} import training\ntraining(*sys.argv[1:])\n")
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone", str(program)]
    return subprocess.run(
        [sys.executable, *command, str(folder / "out"), how, fails_at],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("how", "fails_at"), [("fsdp2", "forward:9"), ("fsdp2", "eval:2"), ("overlap", "backward:14"), ("overlap", "backward:13")]
)
def test_all_ranks_go_back_and_end_where_the_run_that_never_failed_ends(how, fails_at, tmp_path):
    done = under_torchrun(tmp_path, how, fails_at)
    assert done.returncode == 0, done.stderr[-6000:]
    attempt = json.loads((tmp_path / "out" / "attempt.json").read_text())
    statistics = json.loads((tmp_path / "out" / "training_stats.json").read_text())
    # 13 is the first micro-batch of an update, whose gradients stay on the rank: that one is replayed.
    expected = {"forward:9": (1, 2, None), "eval:2": (1, None, 5), "backward:14": (1, 2, None), "backward:13": (0, None, None)}
    assert (attempt["number"], attempt["piece"], attempt["eval_piece"]) == expected[fails_at], done.stderr[-6000:]
    assert statistics["samples"] == 280 and statistics["effective_batch"] == 16

    alone = network_task()
    batch = BatchingConfig(micro_batch=16)
    fit(alone, network_config(tmp_path / "one", epochs=4, batch=batch, optimizer=OptimizerConfig("sgd", lr=0.1), clip_norm=1.0))
    from brimful.train.checkpoints import Checkpoints

    newest = Checkpoints(tmp_path / "out" / "checkpoints", CheckpointConfig(), print).newest()
    assert newest is not None
    assert farthest(weights(alone), [newest.state["model"][name] for name, _ in alone.model.named_parameters()]) < 1e-5


def test_without_a_store_that_outlives_the_ranks_it_is_a_sentence():
    from brimful.errors import DoesNotFit
    from brimful.train.restart import Restart

    with mock.patch.dict(os.environ):
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        restart = Restart(print, lambda: None)
        with pytest.raises(DoesNotFit, match="cannot be replayed"):
            restart.smaller(4, "a test")
