"""The engine on a card with less memory than its batch needs, which no laptop has: it recovers as
it would on a real one.
"""

import json

import pytest

from brimful_inside.wire import Card
from tests.brimful_inside.helper import run_trial

pytestmark = pytest.mark.heavy  # processes of their own

GIB, MIB = 1 << 30, 1 << 20
RATES = {"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12}
CARD = Card("an imaginary card", 40 * GIB, GIB // 2, [8, 0], 108, 1555e9, RATES)
SCRIPT = """
import sys, torch
from torch import nn
from brimful_train import *
layers = nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
model = nn.Sequential(*layers)
x, y = torch.randn(9000, 256), torch.randint(0, 10, (9000,))
entropy = nn.functional.cross_entropy
measure = lambda model, b: {"loss": Sum(entropy(model(b[0]), b[1], reduction="sum"), len(b[1]))}
loss = lambda model, b: entropy(model(b[0]), b[1])
task = Task("mlp", model, loss, Arrays(x, y), Arrays(x, y), measure)
batch = BatchingConfig(micro_batch=2048, accumulation=2)
result = fit(task, Config(out="out", epochs=2, batch=batch, precision=sys.argv[1], clip_norm=1.0,
    on_nan=sys.argv[2]))
print("STEPS", result.steps, result.samples)
print("STATISTICS", open("out/training_stats.json").read().replace(chr(10), " "))
"""
# weights, gradients and Adam's moments are 273 MiB; a micro-batch's activations 160 MiB in fp32
TIGHT, IMPOSSIBLE = 480 * MIB, 300 * MIB


def run(tmp_path, capacity, precision="fp32", on_nan="stop", script=SCRIPT, **config):
    return run_trial(
        tmp_path,
        script,
        argv=(precision, on_nan),
        device="imaginary",
        card=CARD,
        capacity_bytes=capacity,
        cut=False,
        **config,
    )


def test_a_card_with_too_little_memory_is_trained_on_in_smaller_pieces(tmp_path):
    trial = run(tmp_path, TIGHT, "fp16")
    assert trial.exit_code == 0, trial.stderr
    assert "STEPS 6 " in trial.stdout
    statistics = json.loads(trial.stdout.split("STATISTICS ")[1].splitlines()[0])
    assert (
        statistics["recoveries"] == 1
        and 500 < statistics["micro_batch"] <= 1024
        and statistics["effective_batch"] == 4096
    )
    assert "in place of 2,048 samples at once" in trial.stderr
    assert (
        statistics["peak_gpu_memory_train_gb"] * GIB <= TIGHT
        and statistics["peak_host_memory_train_gb"] is None
    )
    assert trial.report["steps"] == 6  # the probe counts what the engine counts: an update is one


def test_one_error_leads_from_far_too_many_samples_to_a_piece_that_fits(tmp_path):
    script = SCRIPT.replace("micro_batch=2048, accumulation=2", "micro_batch=60000")
    trial = run(tmp_path, GIB, script=script.replace("9000", "60000"))
    assert trial.exit_code == 0, trial.stderr
    statistics = json.loads(trial.stdout.split("STATISTICS ")[1].splitlines()[0])
    assert statistics["recoveries"] == 1 and 3000 < statistics["micro_batch"] < 8000
    # what was measured on the way belongs to the phase, and is no more than the piece takes
    assert statistics["peak_gpu_memory_train_reserved_gb"] <= 1
    assert "FutureWarning" not in trial.stderr


def test_a_card_that_has_enough_splits_nothing(tmp_path):
    trial = run(tmp_path, None, on_nan="skip")
    statistics = json.loads(trial.stdout.split("STATISTICS ")[1].splitlines()[0])
    assert statistics["recoveries"] == 0 and statistics["micro_batch"] == 2048
    assert statistics["peak_gpu_memory_train_reserved_gb"] * GIB > TIGHT
    # Its tensors have no data: nothing is reported of their values, and no check of them ends or
    # skips anything.
    assert "STEPS 6 " in trial.stdout and statistics["skipped_nan"] == 0
    assert "loss – (an imaginary card has no data)" in trial.stderr
    assert "nan" not in trial.stderr and "eval loss" not in trial.stderr


SIZED = """
import torch
from torch import nn
from brimful_train import *
model = nn.Sequential(nn.Embedding(100, 512), nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 1))
words, lengths = torch.zeros(64, 400, dtype=torch.long), torch.arange(1, 65) * 6
data = Arrays(words, lengths, sizes=lengths.numpy())
def loss(model, batch):
    longest = int(batch[1].max()) or 384  # what is read from an imaginary card may be 0
    return model(batch[0][:, :longest]).mean()
def measure(model, batch):
    return {"loss": Sum(loss(model, batch), 1)}
batch = BatchingConfig(micro_batch=16, eval_batch=48)
config = Config(out="out", epochs=1, batch=batch, precision="fp32")
fit(Task("sized", model, loss, data, data, measure), config)
"""


def test_what_is_tried_before_the_first_step_belongs_to_the_training_and_to_the_evaluation(
    tmp_path,
):
    phases = run_trial(tmp_path, SIZED, device="imaginary", card=CARD, cut=False).report["phases"]
    assert list(phases) == ["setup", "train", "eval"]
    # of a sample: the first layer's output, 6 MiB; the weights are 8 MiB
    activations = 384 * 4096 * 4
    assert phases["setup"]["reserved_bytes"] < 64 * MIB
    assert phases["train"]["allocated_bytes"] > 2 * 16 * activations
    assert phases["eval"]["allocated_bytes"] > 48 * activations


@pytest.mark.parametrize(("capacity", "phase"), [(250 * MIB, "train"), (500 * MIB, "eval")])
def test_memory_that_is_missing_when_something_is_tried_is_missing_in_its_phase(
    capacity, phase, tmp_path
):
    trial = run_trial(
        tmp_path,
        SIZED,
        device="imaginary",
        card=CARD,
        capacity_bytes=capacity,
        cut=False,
        exit_code=0,
    )
    assert {failure["phase"] for failure in trial.failures if failure["step"] == 0} >= {phase}
    assert not any(failure["phase"] == "setup" for failure in trial.failures)
