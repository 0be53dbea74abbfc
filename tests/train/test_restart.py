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


# By attempt: where rank 1 runs out of memory. Under overlap, 13 is the first micro-batch of an update, whose gradients stay on
# the rank: it is replayed. 39 is the last one of the first update that is overlapped after that.
FAULTS = {"fsdp2": [[("forward", 9)], [("eval", 2)], []], "overlap": [[("backward", 13), ("backward", 39)], []]}


def training(folder: str, how: str) -> None:
    rank = int(os.environ["RANK"])
    task = network_task(faults=Faults(FAULTS[how][Attempt.this().number] if rank == 1 else []))
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


def under_torchrun(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    program = folder / "train.py"
    program.write_text(f"import sys\nfrom {HERE} import training\ntraining(*sys.argv[1:])\n")
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone", str(program)]
    return subprocess.run(
        [sys.executable, *command, str(folder / "out"), how],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=200,
    )  # fmt: skip


@pytest.mark.parametrize(("how", "attempt"), [("fsdp2", (2, 2, 5)), ("overlap", (1, 1, None))])
def test_all_ranks_go_back_and_end_where_the_run_that_never_failed_ends(how, attempt, tmp_path):
    done = under_torchrun(tmp_path, how)
    assert done.returncode == 0, done.stderr[-6000:]
    last = json.loads((tmp_path / "out" / "attempt.json").read_text())
    assert (last["number"], last["piece"], last["eval_piece"]) == attempt, done.stderr[-6000:]
    statistics = json.loads((tmp_path / "out" / "training_stats.json").read_text())
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
