"""What is reported of a script, on an imaginary card."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench.card import child  # noqa: E402
from bench.card.jobs import SCRIPTS  # noqa: E402
from brimful_inside.wire import Card  # noqa: E402
from tests.brimful_inside.imaginary.conftest import entered  # noqa: E402

CARD = {
    "name": "NVIDIA H200",
    "total_bytes": 140 << 30,
    "capability": [9, 0],
    "multiprocessors": 132,
    "context_bytes": 1 << 29,
}
PAIRWISE = str(SCRIPTS / "pairwise.py")


def reported(folder: Path, script: str, *words: str, **spec: Any) -> dict[str, Any]:
    spec |= {"result": str(folder / "result"), "card": CARD | {"capacity_bytes": 139 << 30}}
    (folder / "spec").write_text(json.dumps(spec))
    child.main([str(folder / "spec"), script, *words])
    return json.loads((folder / "result").read_text())


def test_peaks_segments_and_a_time_for_each_step_after_the_warm_up_are_reported(tmp_path):
    words = ("--batch-size", "32", "--steps", "8")
    result = reported(tmp_path, PAIRWISE, *words, history=True, lock=str(tmp_path / "lock"))
    assert result["error"] is None and result["steps"] == 8
    assert len(result["step_s"]) == 8 - child.WARMUP_STEPS
    assert 0 < result["allocated_bytes"] < result["reserved_bytes"]
    taken = sum(size for _, size, _ in result["segments"]["rows"])
    assert taken << 10 == result["reserved_bytes"], "nothing was given back"
    assert result["context_bytes"] == result["bare_context_bytes"] == 1 << 29
    assert (tmp_path / "result.trace.gz").stat().st_size > 100


def test_an_allocator_with_a_limit_runs_out_of_memory_where_the_limit_is(tmp_path, capsys):
    words = ("--batch-size", "2048", "--steps", "1")
    full = reported(tmp_path, PAIRWISE, *words, limit_bytes=64 << 20)
    assert full["error"].startswith("OutOfMemoryError") and full["reserved_bytes"] <= 64 << 20
    assert reported(tmp_path, PAIRWISE, *words)["error"] is None


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("raise RuntimeError('no')", "RuntimeError: no"),
        ("sys.exit('no')", "SystemExit: no"),
        ("sys.exit(0)", None),
    ],
)
def test_a_script_that_fails_is_reported_with_its_own_message(tmp_path, line, error):
    path = tmp_path / "train.py"
    path.write_text(f"import sys\nassert sys.argv[1:] == ['x']\n{line}")
    assert child.error_of(str(path), ["x"]) == error and "x" not in sys.argv


def test_of_two_optimizers_the_first_counts_the_steps(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("""
import torch
networks = [torch.nn.Linear(2, 2).cuda() for _ in range(2)]
optimizers = [torch.optim.SGD(network.parameters()) for network in networks]
for _ in range(3):
    for network, optimizer in zip(networks, optimizers):
        network(torch.ones(2, device="cuda")).sum().backward()
        optimizer.step()
""")
    with entered(Card(**CARD), 139 << 30):
        assert child.trained(str(path), [])["steps"] == 3


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("convnet", "--block separable --width 8 --depth 1 --image-size 32 --channels-last"),
        ("gpt", "--layers 1 --width 32 --heads 4 --length 16 --gated --groups 2"),
        ("gpt", "--layers 1 --width 32 --heads 2 --length 16 --root-mean-square --checkpoint"),
    ],
)
def test_every_script_trains_with_its_flags(tmp_path, script, flags):
    words = [*flags.split(), "--amp", "bf16", "--batch-size", "2", "--steps", "2"]
    result = reported(tmp_path, str(SCRIPTS / f"{script}.py"), *words)
    assert result["error"] is None and result["steps"] == 2


def test_counting_steps_keeps_no_optimizer_alive(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("""
import gc
import torch
def train():
    network = torch.nn.Linear(4096, 4096).cuda()  # 64 MiB, four times
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(2, 4096, device="cuda")).sum().backward()
    optimizer.step()
train()
gc.collect()
assert torch.cuda.memory_allocated() < 100 << 20, "cuBLAS keeps 64 MiB"
""")
    assert reported(tmp_path, str(path))["error"] is None


def test_segments_are_packed_with_the_allocations_before_them():
    mib = 1 << 20
    trace = [("segment_alloc", 64 * mib), ("alloc", 64 * mib), ("segment_alloc", 40 * mib)]
    trace += [("alloc", 40 * mib), ("free_completed", 64 * mib), ("segment_free", 64 * mib)]
    entries = [{"action": action, "addr": address, "size": mib} for action, address in trace]
    assert child.packed({"device_traces": [entries]}) == {
        "allocations": 2,
        "lowest_kib": 40 << 10,
        "rows": [[0, 1024, 24 << 10], [1, 1024, 0], [2, -1024, 24 << 10]],
    }
