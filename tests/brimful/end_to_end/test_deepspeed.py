"""DeepSpeed's launcher with two ranks, each on an imaginary card of its own, where DeepSpeed is
installed."""

import sys

import pytest

from brimful.units import MIB
from tests.brimful.end_to_end.helper import brimful, left_over, script

pytest.importorskip("deepspeed")

SCRIPT = """
import argparse
import deepspeed, torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
host = {"device": "cpu", "pin_memory": True}
config = {
    "train_micro_batch_size_per_gpu": args.batch_size,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 3, "reduce_bucket_size": 1 << 20, "offload_optimizer": host},
}
deepspeed.init_distributed()
with deepspeed.zero.Init(config_dict_or_path=config):
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
data = torch.utils.data.TensorDataset(torch.randn(512, 1024))
engine, _, loader, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), training_data=data, config=config
)
for (x,) in loader:
    loss = engine(x.to(engine.device, torch.bfloat16)).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
print("loss", loss.item())
"""


def test_ranks_of_deepspeeds_launcher_agree_on_what_they_do_and_each_holds_its_share(tmp_path):
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", 2]
    command = [*launcher, script(tmp_path, SCRIPT), "--batch-size", 16]
    words = "audit", "--gpu", "a100-40gb:2", "--json", "--"
    done = brimful(tmp_path, *words, *command, code=0)
    assert done.json["effective"].items() >= {"ranks": 2, "samples_per_step": 32}.items()
    (sample,) = done.record.trials
    assert [report.rank for report in sample.reports] == [0, 1]
    weights = 2 * 8 * 1024 * 1024  # bytes
    for report in sample.reports:
        assert report.approximations["an optimizer's step on the host"] > 0
        peak = report.cards[0].peak.allocated_bytes
        # its half of the weights and gradients, and what is gathered of the other half
        assert weights < peak < 4 * weights + 8 * MIB
    assert not left_over(done.home)
