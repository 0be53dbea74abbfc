"""`predict` from end to end: the object it prints, and the traps that a peak can hide in."""

from __future__ import annotations

import pytest
from helper import TRAPS, brimful, python, script

from brimful.units import GIB

WIDE = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
inputs = torch.randn(4096, 64)
loader = DataLoader(TensorDataset(inputs, inputs.mean(1, keepdim=True)), batch_size=args.batch_size)
model = nn.Sequential(nn.Linear(64, 65536), nn.ReLU(), nn.Linear(65536, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for features, targets in loader:
    loss = nn.functional.mse_loss(model(features.cuda()), targets.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_does_not_fit_is_answered_with_the_whole_object_and_exit_code_3(tmp_path):
    path = script(tmp_path, WIDE)
    done = brimful(tmp_path, "predict", "--gpu-memory", "3GiB", "--json", *python(path, "--batch-size", 4000))
    assert done.code == 3, done.err
    said = done.json
    for key in ("schema", "verdict", "batch_size", "peak", "phases", "largest_batch_size", "gpu", "seconds"):
        assert key in said
    assert (said["verdict"], said["batch_size"]) == ("out_of_memory", 4000)
    peak = said["peak"]
    low, high = peak["device_interval_bytes"]
    assert peak["allocated_bytes"] <= peak["reserved_bytes"] <= peak["device_bytes"]
    assert low <= peak["device_bytes"] <= high
    assert peak["device_bytes"] - peak["reserved_bytes"] == said["gpu"]["context_bytes"]["value"]
    assert said["gpu"]["total_bytes"]["value"] == 3 * GIB
    # Three tensors of (4000, 65536) floats live at the top of the backward pass: what relu gave, its gradient, and that of
    # its input; and parameters and gradients of 65536 x 66 floats each.
    assert peak["allocated_bytes"] == pytest.approx(3 * 4000 * 65536 * 4 + 2 * 65536 * 66 * 4, rel=0.02)
    assert 1 <= said["largest_batch_size"] < 4000
    assert "train" in said["phases"]
    where = said["breakdown"]
    parts = where["parts"]
    assert sum(parts.values()) == peak["device_bytes"]
    assert parts["parameters"] == pytest.approx(65536 * 66 * 4, rel=0.02)
    assert parts["activations"] == pytest.approx(4000 * 65536 * 4, rel=0.02), "relu's result; what it read is its own now"
    assert where["phase"] == "train"
    assert where["moment"]["where"].endswith("in <module>: loss.backward()")
    assert where["moment"]["during"] == "backward"
    assert {share["module"] for share in where["modules"]} <= {"0", "1", "2", "Sequential (itself)"}
    savings = {saving["code"]: saving for saving in said["what_if"]["savings"]}
    assert savings["accumulation-2"]["source"] == "estimate" and savings["accumulation-2"]["saved_bytes"] > GIB
    assert savings["mixed-precision"]["source"] == "predicted" and savings["mixed-precision"]["saved_bytes"] > GIB / 2
    others = {other["code"]: other["why"] for other in said["what_if"]["others"]}
    assert "no blocks that repeat" in others["gradient-checkpointing"]


COUNTED = """
import argparse, os
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()

class Texts(Dataset):
    def __len__(self):
        return 2000
    def __getitem__(self, index):
        os.write(1, b"asked\\n")
        return torch.ones(10 + index * 37 % 91)

def pad(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

weight = torch.nn.Parameter(torch.ones(1, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for texts in DataLoader(Texts(), args.batch_size, shuffle=True, collate_fn=pad):
    (texts.cuda() * weight).mean().backward()
    optimizer.step()
"""
FIRST, DISTINCT = 32, 256  # what is compared with an earlier scan (and the largest), and what batches are made of at most


def test_a_later_trial_looks_at_the_first_samples_and_at_those_of_its_own_batches(tmp_path):
    done = brimful(
        tmp_path, "predict", "--gpu-memory", "16GiB", "--json", *python(script(tmp_path, COUNTED), "--batch-size", 8)
    )
    assert done.code == 0, done.err
    assert "in all 2000 samples" in done.json["worst_batch"]["what"]
    folders = [done.trial.parent / sample.folder for sample in done.record.trials]
    first, *later = [(folder / "stdout.txt").read_text().count("asked") for folder in folders]
    assert first >= 2000 and len(later) >= 2 and all(FIRST < count <= FIRST + 1 + DISTINCT for count in later)
    worst = [sample.reports[0].worst_batch for sample in done.record.trials]
    assert [one.scanned_in for one in worst] == [None] + ["trial-001"] * len(later)
    assert len({(one.scanned, one.what, tuple(one.indices)) for one in worst}) == 1
    assert [len(list(folder.glob("scans-*.jsonl"))) for folder in folders] == [1] + [0] * len(later)


def test_an_evaluation_that_takes_more_than_the_training_gives_the_peak(tmp_path):
    done = brimful(tmp_path, "predict", "--gpu-memory", "16GiB", "--json", *python(TRAPS / "evaluation_hungry.py"))
    assert done.code == 0, done.err
    phases = {name: peak["allocated_bytes"] for name, peak in done.json["phases"].items()}
    assert phases["eval"] >= 50 * phases["train"]
    assert done.json["peak"]["allocated_bytes"] == phases["eval"]
    # (4096, 4096, 8) distances, in floats, and their square
    assert phases["eval"] >= 2 * 4096 * 4096 * 8 * 4


def test_sentences_of_5_to_500_tokens_are_predicted_at_500(tmp_path):
    real = brimful(tmp_path, "predict", "--gpu-memory", "16GiB", "--json", *python(TRAPS / "sentences.py"))
    assert real.code == 0, real.err
    assert real.json["worst_batch"]["varies"]
    all_long = (
        (TRAPS / "sentences.py").read_text().replace("torch.randint(SHORTEST, 100, (count,)).tolist()", "[LONGEST] * count")
    )
    path = script(tmp_path, all_long.replace("lengths[0], lengths[1::200] = SHORTEST", "lengths[0], lengths[1::200] = LONGEST"))
    longest = brimful(tmp_path, "predict", "--gpu-memory", "16GiB", "--json", *python(path), home=tmp_path / "home2")
    assert longest.code == 0, longest.err
    assert real.json["peak"]["reserved_bytes"] == longest.json["peak"]["reserved_bytes"]
    assert real.json["peak"]["allocated_bytes"] == pytest.approx(longest.json["peak"]["allocated_bytes"], rel=0.01)
    assert real.json["peak"]["device_bytes"] < 16 * GIB
