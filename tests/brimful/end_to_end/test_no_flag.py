"""Scripts that hold their batch size in their text, predicted, tuned and run at other sizes; their
folder stays as it is.
"""

import json

import pytest

from tests.brimful.end_to_end.helper import TRAINING, brimful, python, script
from tests.brimful_inside.helper import contents

# : The training without flags: the number stands in an imported file, the width is the same number
# and stands elsewhere.
FIXED = (
    TRAINING.replace("import argparse", "from config import batch_size, width")
    .replace(
        'parser = argparse.ArgumentParser()\nparser.add_argument("--batch-size", type=int, '
        "default=8)\n",
        "",
    )
    .replace("args = parser.parse_args()\n", "")
    .replace("args.batch_size", "batch_size")
    .replace("256", "width")
    .replace(
        'print("loss"',
        'print("steps", SAMPLES // batch_size, "batches", len(loader))\nprint("loss"',
    )
)
SPAWNED = """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

batch_size = 64

def main(rank, ranks, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    data = TensorDataset(torch.randn(512, 16))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=batch_size, sampler=DistributedSampler(data))
    for features, in loader:
        optimizer.zero_grad(); model(features).mean().backward(); optimizer.step()
    if rank == 0:
        print("batches", len(loader), "of", batch_size)
    dist.destroy_process_group()

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mp.spawn(main, args=(2, port), nprocs=2)
"""

# Its input is (steps, sequences), as recurrent networks of PyTorch take it.
RECURRENT = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=20, help="sequences")
parser.add_argument("--bptt", type=int, default=35, help="steps of each")
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
stream = torch.arange(args.batch_size * 700).view(args.batch_size, -1).t().contiguous() % 100


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.inner = nn.Embedding(100, 32), nn.LSTM(32, 32)
        self.last = nn.Linear(32, 100)

    def forward(self, tokens):
        return self.last(self.inner(self.embed(tokens))[0])


model = Model().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(0, len(stream) - 1, args.bptt):
    count = min(args.bptt, len(stream) - 1 - i)
    tokens, after = stream[i : i + count].to(device), stream[i + 1 : i + 1 + count].to(device)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), after.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.heavy
def test_a_fixed_batch_size_is_predicted_as_with_a_flag(tmp_path):
    path = script(tmp_path / "fixed", FIXED)
    (path.parent / "config.py").write_text("width = 256\nbatch_size = 256\n")
    before = contents(path.parent)
    options = ("--json", "--no-what-if", "--gpu", "t4")
    answer = brimful(tmp_path, "predict", *options, *python(path), cwd=path.parent, code=0)
    same = brimful(
        tmp_path,
        "predict",
        *options,
        *python(script(tmp_path / "flagged"), "--batch-size", 256),
    )
    names = ("batch_size", "largest_batch_size", "verdict", "exact")
    assert {name: answer.json[name] for name in names} == {name: same.json[name] for name in names}
    assert answer.json["peak"]["reserved_bytes"] == same.json["peak"]["reserved_bytes"]
    (said,) = [one for one in answer.json["warnings"] if one["code"] == "batch-size-place"]
    assert (
        "set where config.py:2 has 256 (`batch_size = 256`)" in said["problem"]
        and "config.py:1" in said["explanation"]
    )
    ran = brimful(
        tmp_path, "run", "--device", "cpu", "--set", "batch_size=64", *python(path), cwd=path.parent
    )
    assert ran.code == 0 and "steps 8 batches 8" in ran.out, ran.err
    assert contents(path.parent) == before


LOOP = """
import torch
from torch import nn
from torch.nn import functional as F

batches_kept, length = 16, 32
batch_size = 16  # sequences that are trained on at once
device = "cuda" if torch.cuda.is_available() else "cpu"
text = torch.randint(64, (10_000,))
layers = (nn.Embedding(64, 128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 64))
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(40):
    at = torch.randint(len(text) - length, (batch_size,))
    here, after = (
        torch.stack([text[i + late : i + late + length] for i in at]).to(device) for late in (0, 1)
    )
    loss = F.cross_entropy(model(here).flatten(0, 1), after.flatten())
    optimizer.zero_grad(); loss.backward(); optimizer.step()
print("sequences", len(here), "kept", batches_kept)
"""


@pytest.mark.heavy
def test_a_loop_without_a_loader_runs_at_another_size(tmp_path):
    path = script(tmp_path / "loop", LOOP)
    before = contents(path.parent)
    answer = brimful(
        tmp_path,
        "predict",
        "--json",
        "--no-what-if",
        "--gpu",
        "t4",
        "--max-batch-size",
        200,
        *python(path),
        cwd=path.parent,
        code=0,
    )
    assert answer.json["batch_size"] == 16 and answer.json["largest_batch_size"] == 200
    (said,) = [one for one in answer.json["warnings"] if one["code"] == "batch-size-place"]
    assert "train.py:7 has 16 (`batch_size = 16" in said["problem"], (
        "line 6 has it too, and the input does not follow"
    )
    ran = brimful(
        tmp_path, "run", "--device", "cpu", "--set", "batch_size=24", *python(path), cwd=path.parent
    )
    assert ran.code == 0 and "sequences 24 kept 16" in ran.out, ran.err
    assert contents(path.parent) == before


@pytest.mark.heavy
def test_where_steps_come_before_sequences_the_batch_size_is_that_of_sequences(tmp_path):
    path = script(tmp_path, RECURRENT)
    options = ("--json", "--no-what-if", "--gpu", "t4", "--max-batch-size", 500)
    answer = brimful(tmp_path, "predict", *options, *python(path), code=0).json
    assert (answer["batch_size"], answer["largest_batch_size"]) == (20, 500)
    speed = answer["speed"]
    assert speed["samples_per_s"]["value"] == pytest.approx(20 / speed["step_s"]["value"])


@pytest.mark.heavy
def test_ranks_that_a_script_spawns_run_at_another_size(tmp_path):
    path = script(tmp_path / "spawned", SPAWNED)
    before = contents(path.parent)
    ran = brimful(
        tmp_path,
        "run",
        "--json",
        "--device",
        "cpu",
        "--set",
        "batch_size=32",
        *python(path),
        cwd=path.parent,
    )
    assert ran.code == 0 and "batches 8 of 32" in ran.err, ran.err
    assert json.loads(ran.out)["attempts"][0]["steps"] == 8
    assert contents(path.parent) == before
