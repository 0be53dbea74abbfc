"""The bench of whole epochs: one short epoch of its LSTM, and the table of its programs."""

from dataclasses import replace

import pytest

from bench.epochs import __main__ as epochs
from bench.epochs.programs import PROGRAMS
from brimful.values import Outcome


@pytest.mark.slow
def test_an_epoch_at_the_named_batch_size_fits(monkeypatch):
    monkeypatch.setattr(epochs, "MORE", {"at_named": 1.0})
    job = replace(PROGRAMS["lstm"], samples=1500)
    row = epochs.row_of("lstm", job, seeds=1)
    assert row["named"] > 1
    (run,) = row["at_named"]
    assert run["outcome"] == Outcome.COMPLETED
    assert run["steps"] == 1500 // row["named"]
