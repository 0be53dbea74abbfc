"""Scripts without a DataLoader: samples are counted by what the model is given."""

from __future__ import annotations

import pytest

SCRIPT = """
import sys, torch
from torch import nn
model, head = nn.LSTM(3, 5), nn.Linear(5, 1)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for _ in range(6):
    states, _ = model(torch.randn(7, int(sys.argv[1]), 3))
    head(states).mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(("settings", "counted"), [({"batch_size": 4}, 4), ({}, 7), ({"batch_size": 5}, 7)])
def test_the_second_dimension_counts_where_it_is_the_batch_size_that_was_asked_for(run_trial, settings, counted):
    trial = run_trial(SCRIPT, argv=("4",), settings=settings)
    assert set(trial.report["samples_per_step"][1:]) == {counted}, "the first step is over before anybody looks"
    assert any("counted by the model's input" in note for note in trial.report["notes"])
