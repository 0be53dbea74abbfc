"""A /dev/shm of 1 MiB, as a container may have it: no smaller batch size is tried."""

import subprocess
import sys
from pathlib import Path

import pytest

from brimful.record import read_record
from brimful.values import Outcome
from tests.brimful.end_to_end.helper import environment, script

MOUNT = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
# A collate of the script's own makes ordinary tensors: a thread of the worker fails to hand them
# over, and the script waits for good.
TRAINING = """
import argparse, torch
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--own-collate", action="store_true")
args = parser.parse_args()
data = TensorDataset(torch.randn(512, 16384))
def collate(samples):
    return [torch.stack([sample[0] for sample in samples])]
own = {"collate_fn": collate} if args.own_collate else {}
model = torch.nn.Linear(16384, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(data, batch_size=args.batch_size, num_workers=1, **own):
    model(x).sum().backward()
    optimizer.step()
"""


def mounts() -> bool:
    try:
        return not subprocess.run(
            ["unshare", "-m", "sh", "-c", MOUNT], capture_output=True
        ).returncode
    except OSError:
        return False


pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(not mounts(), reason="needs root, for a mount of its own"),
]


@pytest.mark.parametrize(
    ("verb", "more"), [("run", ()), ("run", ("--own-collate",)), ("audit", ()), ("tune", ())]
)
def test_it_is_said_what_to_do(tmp_path, verb, more):
    path = script(tmp_path, TRAINING)
    words = f"{MOUNT} && exec {sys.executable} -m brimful {verb} --device cpu -- {sys.executable} "
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{words} {path} --batch-size 64 {' '.join(more)}"],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = " ".join(done.stderr.split())
    assert done.returncode == 5, said
    assert "/dev/shm ran full" in said and "it has 1.00 MiB" in said
    assert "--shm-size" in said and "num_workers=0" in said
    record = read_record("latest", tmp_path / "home")
    ends = record.run.attempts if record.run else record.trials
    assert [end.outcome for end in ends] == [Outcome.FULL_SHARED_MEMORY]
    assert Path(record.folder).exists()
