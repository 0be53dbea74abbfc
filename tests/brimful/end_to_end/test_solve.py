"""Other unknowns than the batch size, and tables, for a real script: each answer beside a
prediction of fixed values.
"""

import pytest

from tests.brimful.end_to_end.helper import brimful, python, script

TRANSFORMER = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--max-length", type=int, default=64)
parser.add_argument("--layers", type=int, default=2)
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.inner(x).chunk(3, -1)
        x = x + torch.softmax(q @ k.transpose(1, 2), -1) @ v
        return x + self.down(torch.relu(self.up(x)))


blocks = [Block(64) for _ in range(args.layers)]
model = nn.Sequential(nn.Embedding(1000, 64), *blocks, nn.Linear(64, 1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.zeros(256, 1, dtype=torch.long).expand(-1, args.max_length)
for (batch,) in DataLoader(TensorDataset(tokens), batch_size=args.batch_size):
    batch = batch.cuda()
    loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CARD = ("--gpu-memory", "2GiB", "--json", "--no-what-if")


def predicted(folder, command, batch_size):
    """Of fixed values: no larger batch size is looked for."""
    most = ("--max-batch-size", batch_size)
    return brimful(folder, "predict", *CARD, *most, *command).json


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "flag"), [("max_length", "--max-length"), ("layers", "--layers")])
def test_the_value_that_is_named_fits_as_a_fixed_one_and_the_next_does_not(tmp_path, name, flag):
    path = script(tmp_path, TRANSFORMER)
    fixed = ("--batch-size", 8, *(("--max-length", 1024) if name == "layers" else ()))
    found = brimful(
        tmp_path, "predict", *CARD, "--solve", name, *python(path, *fixed, flag, f"{{{name}}}")
    ).json["solved"]
    assert found["name"] == name and found["value"] == found["largest"]
    for value, fits in ((found["value"], True), (found["value"] + found["multiple_of"], False)):
        own = predicted(tmp_path, python(path, *fixed, flag, value), 8)
        assert (own["verdict"] == "fits") is fits


@pytest.mark.heavy
def test_an_extrapolated_cell_of_a_table_is_what_its_own_trace_says_to_the_byte(tmp_path):
    path = script(tmp_path, TRANSFORMER)
    sides = ("--grid", "batch_size=1,2,4,8,32", "--grid", "max_length=512,2048")
    cells = brimful(
        tmp_path, "predict", *CARD, *sides, *python(path, "--batch-size", 8, "--max-length", 64)
    ).json["rows"]
    assert len(cells) == 10 and {cell["verdict"] for cell in cells} == {"fits", "does_not_fit"}
    left_out = [cell for cell in cells if not cell["traced"]]
    assert left_out
    for cell in (left_out[0], left_out[-1]):
        settings = cell["settings"]
        words = python(
            path, "--batch-size", settings["batch_size"], "--max-length", settings["max_length"]
        )
        own = predicted(tmp_path, words, settings["batch_size"])
        assert own["verdict"] == cell["verdict"]
        assert own["peak"]["device_bytes"] == cell["peak_bytes"]["value"]
