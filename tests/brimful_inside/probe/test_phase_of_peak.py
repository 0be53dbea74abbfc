"""The peak of a training forward that follows an evaluation belongs to training."""

import pytest

from tests.brimful_inside.helper import run_trial

SCRIPT = """
import torch
from torch import nn

GIVES = {gives}
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
data = torch.randn(8192, 256, device="cuda")  # made once: what is made between phases belongs to the one before
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(batch):
    model(data[:batch]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def evaluate(batch):
    model.eval()
    with torch.no_grad():
        model(data[:batch])
    model.train()

step(32)
evaluate({evaluated})
if GIVES:
    step({trained})
else:
    model(data[:{trained}])  # a forward that no backward follows
"""
CARD = {"name": "A card", "total_bytes": 8 << 30, "context_bytes": 0, "capability": [8, 0], "multiprocessors": 108}
ACTIVATION_BYTES = 1024 * 4  # of one sample in the wide layer


def peaks(folder, evaluated: int, trained: int, gives: bool = True) -> tuple[int, int]:
    script = SCRIPT.format(evaluated=evaluated, trained=trained, gives=gives)
    place = folder / f"{evaluated}-{trained}"
    place.mkdir()
    trial = run_trial(place, script, device="imaginary", card=CARD, steps=20)
    assert trial.exit_code == 0, trial.stderr
    phases = trial.report["phases"]
    return phases["train"]["allocated_bytes"], phases["eval"]["allocated_bytes"]


@pytest.mark.parametrize("gives", [True, False], ids=["a step", "a forward alone"])
def test_a_larger_training_batch_after_an_evaluation_raises_the_peak_of_training_alone(tmp_path, gives):
    small_train, small_eval = peaks(tmp_path, evaluated=64, trained=32, gives=gives)
    train, evaluation = peaks(tmp_path, evaluated=64, trained=8192, gives=gives)
    assert train - small_train > 8000 * ACTIVATION_BYTES
    assert evaluation == small_eval < 8000 * ACTIVATION_BYTES


def test_a_larger_evaluation_batch_raises_the_peak_of_evaluation_alone(tmp_path):
    small_train, small_eval = peaks(tmp_path, evaluated=64, trained=32)
    train, evaluation = peaks(tmp_path, evaluated=8192, trained=32)
    assert evaluation - small_eval > 8000 * ACTIVATION_BYTES and train == small_train
