"""The card as a whole: its memory, its trace, and that nothing of it stays."""

import errno
import gc
import io
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from brimful_inside import imaginary
from brimful_inside.simulator.trace import Free, Malloc, Phase, Step
from tests.brimful_inside.imaginary.conftest import card, entered, rows


def rounded(nbytes):
    return -(-nbytes // 512) * 512


def test_parameters_gradients_and_adam_states_are_as_by_hand(gpu):
    model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10)).to("cuda")
    parameters = sum(rounded(4 * count) for count in (100 * 200, 200, 200 * 10, 10))
    assert torch.cuda.memory_allocated() == parameters
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(32, 100, device="cuda")).square().mean().backward()
    gpu.workspaces.clear()
    # two states of each parameter; the step counts live on the host
    for act, copies in ((lambda: None, 2), (optimizer.step, 4), (optimizer.zero_grad, 3)):
        act()
        assert torch.cuda.memory_allocated() == copies * parameters


def test_the_trace_has_the_rows_of_the_allocator(gpu, trace_file):
    gpu.cards.phase("train")
    torch.zeros(1000, device="cuda")
    gpu.cards.step(1)
    trace = rows(trace_file)
    assert trace.header["card"] == "an imaginary card" and trace.header["capability"] == [8, 0]
    assert trace.rows == [Phase("train"), Malloc(1, 4000, "aten.zeros.default"), Free(1), Step(1)]


def test_the_same_training_gives_the_same_trace():
    def train():
        file = io.StringIO()
        with entered(card(), None, file) as gpu:
            model = nn.Sequential(
                nn.Conv2d(3, 8, 3),
                nn.BatchNorm2d(8),
                nn.Dropout(0.5),
                nn.Flatten(),
                nn.LazyLinear(4),
            )
            model = model.to("cuda")
            model(torch.randn(2, 3, 8, 8, device="cuda"))
            optimizer = torch.optim.AdamW(model.parameters())
            for step in range(2):
                model(torch.randn(2, 3, 8, 8, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                gpu.cards.step(step + 1)
        return file.getvalue()

    assert train() == train()


@pytest.mark.parametrize("was_there_before", [False, True])
def test_cycles_die_at_steps_and_those_from_before_the_card_was_used_when_the_script_collects(
    gpu, was_there_before
):
    early = SimpleNamespace()
    torch.zeros(1, device="cuda")  # the card is used: what is there is set aside
    holder = early if was_there_before else SimpleNamespace()
    holder.itself, holder.tensor = holder, torch.zeros(1000, device="cuda")
    del early, holder
    assert gc.isenabled() and torch.cuda.memory_allocated() == 4096
    gpu.cards.step(1)
    assert torch.cuda.memory_allocated() == (4096 if was_there_before else 0)
    assert gc.collect() > 0 and torch.cuda.memory_allocated() == 0


def test_a_collector_that_was_off_before_stays_off_and_nothing_stays_frozen():
    gc.disable()
    try:
        gpu = imaginary.enter(card())
        torch.zeros(1, device="cuda")
        gpu.leave()
        assert not gc.isenabled() and gc.get_freeze_count() == 0
        gpu.garbage.rest()  # a thread that uses the card late
        gpu.garbage.poll()
        assert gc.get_freeze_count() == 0
    finally:
        gc.enable()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_what_the_host_got_from_the_card_takes_memory_of_it_only_where_it_is_written(gpu):
    copied = torch.empty(1 << 28, dtype=torch.uint8, device="cuda").cpu()
    before = resident()
    assert not copied.any()
    assert resident() - before < 20 << 20
    copied[:: 2 << 20] = 1
    assert int(copied.count_nonzero()) == 128, "it can be written as any other"
    assert resident() - before < 32 << 20, "only where it was written"


def test_moving_a_model_keeps_nothing_of_it_on_the_host(gpu):
    model = nn.Linear(10, 10)
    storage = weakref.ref(model.weight.untyped_storage())
    model.to("cuda")
    assert storage() is None


def test_torch_is_as_before_though_the_trace_could_not_be_written(monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    disk = io.StringIO()
    gpu = imaginary.enter(card(), None, disk)
    torch.ones(3, device="cuda")
    for name in ("write", "flush"):
        monkeypatch.setattr(disk, name, full)
    with pytest.raises(OSError):
        gpu.leave()
    assert not torch.cuda.is_available() and torch.ones(3).device.type == "cpu"
