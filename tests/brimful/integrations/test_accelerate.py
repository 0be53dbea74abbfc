"""Sizes after an out-of-memory error: by records, by measured attempts, and agreed on by ranks."""

import inspect
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from brimful.decide.run.smaller_batch_size import FittingSizes  # noqa: E402
from brimful.integrations import accelerate as adapter  # noqa: E402
from brimful.integrations.accelerate import find_executable_batch_size  # noqa: E402
from tests.brimful.integrations.card import card  # noqa: E402

WIDTH = 1024


def training(tried, steps=4, **options):
    """A training whose samples take 1 MiB or so, and which counts its steps at each size."""

    @find_executable_batch_size(**options)
    def train(batch_size, device="cuda"):
        tried.append((batch_size, 0))
        net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)).to(device)
        optimizer = torch.optim.AdamW(net.parameters())
        for step in range(steps):
            net(torch.randn(batch_size, 64, WIDTH, device=device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            tried[-1] = (batch_size, step + 1)
        return batch_size

    return train


def test_after_out_of_memory_the_size_is_found_by_measured_peaks_and_runs_to_its_end():
    theirs = pytest.importorskip("accelerate.utils").find_executable_batch_size
    tried: list[tuple[int, int]] = []
    with card(150):
        train = training(tried)
        size = train()
        assert tried[0] == (128, 0) and tried[-1] == (size, 4)
        assert 48 < size < 128 and len(tried) <= 7
        # it is remembered, and the next call begins there
        assert train() == size and tried[-2:] == [(size, 4), (size, 4)]
    assert all(steps <= adapter.STEPS for _, steps in tried[:-2])
    assert list(inspect.signature(find_executable_batch_size).parameters) == list(
        inspect.signature(theirs).parameters
    )


def test_a_size_that_fits_is_run_once_and_errors_of_other_kinds_are_the_functions_own():
    tried: list[tuple[int, int]] = []
    with card(150):
        assert training(tried, starting_batch_size=8)() == 8
    assert tried == [(8, 4)]

    @find_executable_batch_size
    def fails(batch_size):
        raise RuntimeError(f"no file for {batch_size}")

    with pytest.raises(RuntimeError, match="no file for 128"):
        fails()


def test_where_not_one_sample_fits_the_error_is_accelerates():
    with card(30), pytest.raises(RuntimeError, match="reached zero"):
        training([])()


def test_ones_own_rule_for_the_next_size_is_followed():
    sizes = iter([100, 20])
    tried: list[tuple[int, int]] = []
    with card(100):
        assert training(tried, reduce_batch_size_fn=lambda: next(sizes))() == 20
    assert [size for size, _ in tried] == [128, 100, 20]


def test_what_records_say_comes_first_and_later_errors_take_three_quarters(monkeypatch):
    monkeypatch.setattr(adapter, "records_of_this_script", lambda *verbs: ())
    monkeypatch.setattr(adapter, "fitting_sizes", lambda records: FittingSizes((), 40, "predicted"))
    tried: list[tuple[int, int]] = []
    with card(150):
        assert training(tried)() == 40
    assert tried == [(128, 0), (40, 4)]

    calls: list[int] = []

    @find_executable_batch_size(starting_batch_size=64)
    def late(batch_size):
        calls.append(batch_size)
        net = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(5):
            if batch_size > 20 or (batch_size > 9 and step == 4):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            net(torch.randn(batch_size, 4)).sum().backward()
            optimizer.step()

    monkeypatch.setattr(adapter, "fitting_sizes", lambda records: FittingSizes())
    late()
    assert calls[:2] == [64, 16] and calls[-1] <= 9
    assert calls[-1] in (int(calls[-2] * 3 / 4), 8)


RANKS = """
import json, sys, torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from brimful.integrations import attempts
from brimful.integrations.accelerate import find_executable_batch_size

attempts.GRACE_S = 1.0
rank, alone = int(sys.argv[1]), sys.argv[2] == "alone"
store = dist.FileStore(sys.argv[3], 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
tried = []

class Short(nn.Module):
    def forward(self, x):
        if len(x) > 40 and (rank == 1 or not alone):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return x

@find_executable_batch_size(starting_batch_size=64)
def train(batch_size):
    tried.append(batch_size)
    net = nn.Sequential(nn.Linear(8, 8), Short(), nn.Linear(8, 2))
    mesh = init_device_mesh("cpu", (2,))
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        net(torch.randn(batch_size, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return batch_size

try:
    print(json.dumps([train(), tried]), flush=True)
except Exception as error:
    print(json.dumps([type(error).__name__, str(getattr(error, 'suggestion', error))]), flush=True)
"""


def ranks(folder: Path, how: str) -> list:
    script = folder / "ranks.py"
    script.write_text(RANKS)
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), how, str(folder / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (1, 0)
    ]
    try:
        return [json.loads(each.communicate(timeout=120)[0]) for each in started]
    finally:
        for each in started:
            each.kill()


@pytest.mark.heavy
def test_sharded_ranks_that_run_out_together_agree_on_each_size(tmp_path):
    first, second = ranks(tmp_path, "together")
    assert first == second and first[1][:2] == [64, 16] and 16 < first[0] <= 40


@pytest.mark.heavy
def test_a_rank_that_runs_out_alone_ends_with_the_next_size_and_does_not_wait_for_good(tmp_path):
    (name, message), (other, _) = ranks(tmp_path, "alone")
    assert name == "DoesNotFit" and "batch size 32" in message and "--max_restarts" in message
    assert other == "RuntimeError"  # gloo's, once the first has gone


def test_the_next_start_by_torchrun_takes_the_size_that_was_noted(monkeypatch):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    for expected in (128, 48):
        monkeypatch.setattr(adapter, "_functions", itertools.count())
        assert find_executable_batch_size(lambda batch_size: batch_size)() == expected
        store.set("brimful/batch_size/0", "48")
