"""DeepSpeed's ZeRO runs as DeepSpeed has it, where it is installed; what it holds is checked
against sums done by hand. DeepSpeed looks for an accelerator once, so a process of its own asks."""

import json
import subprocess
import sys

import pytest

from brimful_inside.wire import ALONE_VARIABLE

pytest.importorskip("deepspeed")

RANKS, WIDTH, DEPTH = 8, 512, 8
PARAMETERS = DEPTH * WIDTH * WIDTH
#: Elements of each bucket: two layers.
BUCKET = 2 * WIDTH * WIDTH
ON_HOST = {"device": "cpu", "pin_memory": True}
SETTINGS = {
    "1": {"stage": 1},
    "2": {"stage": 2},
    "3": {"stage": 3},
    "1, offloaded": {"stage": 1, "offload_optimizer": ON_HOST},
    "2, offloaded": {"stage": 2, "offload_optimizer": ON_HOST},
    "3, states offloaded": {"stage": 3, "offload_optimizer": ON_HOST},
    "3, offloaded": {"stage": 3, "offload_optimizer": ON_HOST, "offload_param": ON_HOST},
}
SCRIPT = """
import contextlib, gc, io, json, sys
import torch
from brimful_inside import imaginary
from brimful_inside.imaginary.operators.library_kernels import COMPILED_PARTS
from tests.brimful_inside.imaginary.conftest import card

gpu = imaginary.enter(card(), None, io.StringIO())
import deepspeed
for name, meet in COMPILED_PARTS.items():
    if name in sys.modules:
        meet(gpu, sys.modules[name])
width, depth, bucket, settings = json.loads(sys.argv[1])
torch.zeros(1, device="cuda")


def requested(which):
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # blocks that waited for streams return
    return torch.cuda.memory_stats()["requested_bytes.all." + which]


def held(zero, half):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        half: {"enabled": True},
        "zero_optimization": {"reduce_bucket_size": bucket, **zero},
    }
    gc.collect()
    before = requested("current")
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(depth)))
    engine = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )[0]
    made = requested("current") - before
    x = torch.randn(2, width, dtype=next(engine.parameters()).dtype, device="cuda")
    for number in range(2):
        loss = engine(x).float().sum()
        torch.cuda.reset_peak_memory_stats()
        engine.backward(loss)
        backward = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
        del loss
        gpu.cards.step(number)
        gpu.clock.last_step()
        engine.step()
    gpu.cards.step(2)
    rows = gpu.clock.last_step()
    update = ("an optimizer", "aten._fused")
    updates = {row.kind: row.bytes for row in rows if row.op.startswith(update)}
    kept = requested("current") - before - x.nbytes
    engine.destroy()
    return [made, backward, kept, updates]


with contextlib.redirect_stdout(sys.stderr):
    answer = {half: {name: held(zero, half) for name, zero in settings.items()}
              for half in ("bf16", "fp16")}
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def held(tmp_path_factory) -> dict:
    """By dtype and setting: bytes on the card when the engine is made, at the most in a backward
    pass, and after a step; and what an update reads and writes."""
    alone = {
        "RANK": 0,
        "WORLD_SIZE": RANKS,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": RANKS,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": 29500,
        ALONE_VARIABLE: 1,
        "CUBLAS_WORKSPACE_CONFIG": ":0:0",
        "CUBLASLT_WORKSPACE_SIZE": 0,
        "OMP_NUM_THREADS": 1,
        "PYTHONPATH": ":".join(path or "." for path in sys.path),
        "HOME": tmp_path_factory.mktemp("home"),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([WIDTH, DEPTH, BUCKET, SETTINGS])],
        env={name: str(value) for name, value in alone.items()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


#: Bytes a parameter. Weights and gradients have 2, the float32 copy 4, Adam's states 8.
SHARE = 1 / RANKS
BUFFER = 2 * BUCKET / PARAMETERS
KEPT = {
    "1": 2 + 12 * SHARE,
    "2": 2 + 12 * SHARE,
    "3": 16 * SHARE + BUFFER,
    # and the largest gradient on its way to the host
    "1, offloaded": 2 + 2 / DEPTH,
    "2, offloaded": 2 + 2 / DEPTH,
    "3, states offloaded": 2 * SHARE + BUFFER,
    "3, offloaded": BUFFER,
}


@pytest.mark.parametrize("half", ["bf16", "fp16"])
@pytest.mark.parametrize("setting", KEPT)
def test_after_a_step_a_rank_holds_its_share_and_its_buffers(held, setting, half):
    _, _, kept, _ = held[half][setting]
    assert kept / PARAMETERS == pytest.approx(KEPT[setting], abs=0.01)


@pytest.mark.parametrize(
    ("setting", "most"),
    [
        # all gradients, and a bucket that is being reduced
        ("1", 4 + 12 * SHARE + BUFFER),
        # the share's gradients, and a bucket in the making beside one that is being reduced
        ("2", 2 + 14 * SHARE + 2 * BUFFER),
        # all weights: they are fewer than stage3_max_live_parameters
        ("3", 2 + 16 * SHARE + BUFFER),
    ],
)
def test_a_backward_pass_holds_gradients_or_buckets_beside_it(held, setting, most):
    _, backward, _, _ = held["bf16"][setting]
    # of ZeRO-3 beside it: gradients of a few layers, and weights whose stream is not done
    layers = 8 * 2 / DEPTH if setting == "3" else 0.01
    assert most - 0.01 <= backward / PARAMETERS <= most + layers


def test_an_update_is_of_the_share_on_the_card_or_on_the_host(held):
    for setting, (_, _, _, updates) in held["bf16"].items():
        kind = "host" if "offloaded" in setting else "memory"
        assert updates == {kind: 28 * PARAMETERS * SHARE}, setting
