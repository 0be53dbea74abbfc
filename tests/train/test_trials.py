"""A trial by brimful of a training that is finished: it begins anew, sees its steps, and leaves the training as it is."""

from __future__ import annotations

import pytest

from brimful.train import CheckpointConfig, fit
from brimful.train.checkpoints import Checkpoints
from tests.brimful_inside.helper import contents, run_trial
from tests.train.ledger import ROOT, network_config, network_task

SCRIPT = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.train.ledger import network_config, network_task
from brimful.train import fit
print("STEPS", fit(network_task(), network_config(Path("out"))).steps)
"""


@pytest.mark.parametrize("keep_out", [True, False])
def test_a_finished_training_has_steps_in_a_trial(keep_out, tmp_path):
    work = tmp_path / "work"
    fit(network_task(), network_config(work / "out"))
    before = contents(work / "out")
    told = run_trial(tmp_path, SCRIPT, keep_out=keep_out, cut=False)
    assert told.exit_code == 0, told.stderr
    assert "STEPS 10" in told.stdout
    assert ("goes on from no checkpoint" in told.stderr) is keep_out
    if keep_out:
        assert told.report["steps"] == 10 and contents(work / "out") == before
    else:  # one whose writes are kept goes on as any other run, and has nothing left to do
        assert "Resumed from" in told.stderr and not any(report["steps"] for report in told.reports)
        assert Checkpoints(work / "out" / "checkpoints", CheckpointConfig(), print).newest() is not None
