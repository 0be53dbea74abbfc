"""What a prediction costs: the arithmetic, and the claim on host memory for a billion parameters,
measured.
"""

import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from bench import prediction_cost as bench

COST = bench.Cost(
    "mlp",
    3,
    [6.0, 9.0, 8.0],
    [7.0, 9.0, 8.0],
    [400 << 20, 390 << 20, 380 << 20],
    [2.0, 2.0, 4.0],
    [260 << 20, 250 << 20, 255 << 20],
    640,
)

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
data = torch.utils.data.TensorDataset(torch.zeros(64, 16384))
for (batch,) in torch.utils.data.DataLoader(data, args.batch_size):
    loss = model(batch.cuda()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_prediction_is_told_as_a_multiple_of_the_script_in_the_same_round():
    assert COST.ratio == 3.0, "3, 4.5 and 2 times"
    assert COST.over_bytes == 150 << 20, "the most of the predictions, the least of the script"


LARGE = replace(COST, name="billion")


@pytest.mark.parametrize(
    ("costs", "holds"),
    [
        ([COST, COST, replace(LARGE, peak_bytes=[2 << 30] * 3)], False),
        ([COST, COST, replace(LARGE, peak_bytes=[1 << 30] * 3)], True),
        ([replace(COST, processor_s=[40.0] * 3)], False),
        ([], True),
    ],
    ids=["more than a gigabyte", "a gigabyte", "40 times", "nothing"],
)
def test_the_limits_are_of_the_median_and_of_the_billion_parameters(costs, holds):
    assert bench.holds(bench.summary(costs)) is holds


def test_a_script_that_was_not_predicted_counts_nowhere_and_its_line_says_why():
    assert bench.summary([replace(COST, error="no"), COST])["scripts"] == 1
    assert "no such thing" in bench.table([replace(COST, error="no such thing")])[1]


def test_the_memory_of_a_process_tree_is_measured_while_it_runs():
    hold = "import subprocess, sys, time; x = bytearray(150 << 20); time.sleep(0.5)"
    words = [
        sys.executable,
        "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])",
    ]
    weighed = bench.weigh(words)
    assert (
        150 << 20 <= weighed.peak_bytes <= 400 << 20 and weighed.wall_s >= 0.5 and weighed.code == 0
    )


def test_a_billion_parameters_on_the_card_take_no_gigabyte_of_the_host(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    cost = bench.cost_of("billion", [str(path), "--batch-size", "8"], "a100-80gb", rounds=1)
    assert cost.error is None and cost.largest_batch_size > 8
    assert cost.trials >= 3 and cost.ratio > 1
    assert cost.script_peak_bytes[0] > 50 << 20, "torch was imported"
    assert cost.over_bytes < bench.LIMIT_BYTES
