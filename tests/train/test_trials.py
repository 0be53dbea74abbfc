"""A trial by brimful of a training that is finished: it begins anew, sees its steps, and leaves the training as it is."""

from __future__ import annotations

import pytest

from brimful.train import fit
from tests.brimful_inside.helper import contents, run_trial
from tests.train.ledger import ROOT, network_config, network_task

pytestmark = pytest.mark.heavy  # processes of their own

SCRIPT = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.train.ledger import network_config, network_task
from brimful.train import fit
print("STEPS", fit(network_task(), network_config(Path("out"))).steps)
"""


def test_a_finished_training_has_steps_in_a_trial(tmp_path):
    work = tmp_path / "work"
    fit(network_task(), network_config(work / "out"))
    before = contents(work / "out")
    trial = run_trial(tmp_path, SCRIPT, keep_out=True, cut=False)
    assert trial.exit_code == 0, trial.stderr
    assert "STEPS 10" in trial.stdout
    assert "goes on from no checkpoint" in trial.stderr
    assert trial.report["steps"] == 10 and contents(work / "out") == before
