"""What a prediction costs: the arithmetic, and the claim on host memory for a billion parameters,
measured.
"""

import pytest

pytest.importorskip("torch")

from bench import prediction_cost as bench

MIB = 1 << 20


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


def test_a_billion_parameters_on_the_card_take_no_gigabyte_of_the_host(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    cost = bench.cost_of("billion", [str(path), "--batch-size", "8"], "a100-80gb", rounds=1)
    assert (cost.largest_batch_size or 0) > 8 and cost.trials >= 3 and cost.ratio > 1
    assert cost.rounds[0].script_peak_bytes > 50 * MIB, "torch was imported"
    assert cost.over_bytes < bench.LIMIT_BYTES
