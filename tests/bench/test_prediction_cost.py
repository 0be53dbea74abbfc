"""What a prediction costs: the arithmetic, and the claim on host memory for a billion parameters, measured."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from bench import prediction_cost as bench

COST = bench.Cost("mlp", 3, 8.0, 10.0, 400 << 20, 1.5, 2.0, 250 << 20, 0.3, 640)

#: A billion parameters in few layers, so that a step is short.
SCRIPT = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(16384, 16384) for _ in range(4)], nn.Linear(16384, 1))
assert sum(p.numel() for p in model.parameters()) > 1_000_000_000
optimizer = torch.optim.AdamW(model.parameters())
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        return torch.zeros(16384) + sum(range(300_000)) % 2
for batch in torch.utils.data.DataLoader(Slow(), args.batch_size):
    loss = model(batch.cuda()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_the_scripts_own_share_is_taken_off_once_a_trace_and_what_comes_later_as_it_was():
    assert COST.beyond_s == pytest.approx(8.0 - 3 * 1.5 - 0.3) and COST.over_bytes == 150 << 20


def test_the_limits_are_of_the_median_and_of_the_billion_parameters():
    large = replace(COST, name="billion", processor_s=40.0, peak_bytes=2 << 30)
    assert bench.holds(bench.summary([COST, COST, large])) is False, "more than a gigabyte"
    assert bench.holds(bench.summary([COST, COST, replace(large, peak_bytes=1 << 30)]))
    assert not bench.holds(bench.summary([replace(COST, processor_s=9.0)]))
    assert bench.summary([replace(COST, error="no"), COST])["scripts"] == 1
    assert bench.holds(bench.summary([]))
    assert "no such thing" in bench.table([replace(COST, error="no such thing")])[1]


def test_the_memory_of_a_process_tree_is_measured_while_it_runs(tmp_path):
    hold = "import subprocess, sys, time; x = bytearray(150 << 20); time.sleep(0.5)"
    words = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"]
    weighed = bench.weigh(words, {}, str(tmp_path))
    assert 150 << 20 <= weighed.peak_bytes <= 400 << 20 and weighed.wall_s >= 0.5 and weighed.code == 0


def test_a_billion_parameters_on_the_card_take_no_gigabyte_of_the_host(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    cost = bench.cost_of("billion", [str(path), "--batch-size", "8"], "a100-80gb", rounds=1)
    assert cost.error is None and cost.largest_batch_size > 8
    assert cost.traces >= 3 and 0.05 < cost.later_own_s < cost.processor_s / 2, "it has samples to make when it has the card"
    assert cost.own_peak_bytes > 50 << 20, "torch was imported"
    assert cost.over_bytes < bench.LIMIT_BYTES
