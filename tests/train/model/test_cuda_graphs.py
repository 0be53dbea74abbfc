"""On the imaginary card, which records graphs and refuses during a recording what a card refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from brimful.errors import UsageError
from brimful.train.model.cuda_graphs import graph_model
from brimful.train.model.precision import Precision
from tests.brimful_inside.imaginary.conftest import enter, gpu, trace_file  # noqa: F401

pytestmark = pytest.mark.usefixtures("gpu")
BATCH = 64


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.1), nn.Linear(32, 4))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layers(x)


@pytest.fixture
def model() -> Small:
    made = Small().cuda()
    graph_model(made, BATCH)
    return made


def train_once(model: nn.Module, size: int = BATCH) -> None:
    model(torch.randn(size, 16, device="cuda")).square().mean().backward()


def test_a_whole_micro_batch_is_recorded_once_and_replayed(model: Small):
    train_once(model)
    recorded = model.calls
    assert recorded > 1, "warm-up and recording"
    for _ in range(3):
        train_once(model)
    assert model.calls == recorded
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())


def test_other_sizes_and_evaluation_run_as_always(model: Small):
    train_once(model, BATCH // 2)
    assert model.calls == 1
    train_once(model)
    recorded = model.calls
    train_once(model, BATCH // 2)
    assert model.calls == recorded + 1
    with torch.no_grad():
        model(torch.randn(BATCH, 16, device="cuda"))
    model.eval()(torch.randn(BATCH, 16, device="cuda"))
    assert model.calls == recorded + 3


def test_a_replay_takes_no_memory(model: Small):
    train_once(model)
    torch.cuda.synchronize()
    peak = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model(torch.randn(BATCH, 16, device="cuda"))
        peak.append(torch.cuda.max_memory_allocated() - before)
    assert set(peak) == {BATCH * 16 * 4}, "the batch itself"


def test_gradients_are_accumulated_into_tensors_of_their_own(model: Small):
    """If autograd took the graph's static tensors for gradients, the next replay would write over what was accumulated."""
    train_once(model)
    first = {p: p.grad.data_ptr() for p in model.parameters()}
    train_once(model)
    assert {p: p.grad.data_ptr() for p in model.parameters()} == first
    model.zero_grad(set_to_none=True)
    replayed = []
    model.layers[0].weight.register_hook(lambda gradient: replayed.append(gradient.data_ptr()))
    train_once(model)
    assert replayed and model.layers[0].weight.grad.data_ptr() not in replayed


def test_without_gradients_that_stand_ready_they_would_be_the_graphs_own(model: Small, monkeypatch):
    """What `_own_gradients` is for."""
    from brimful.train.model import cuda_graphs

    monkeypatch.setattr(cuda_graphs, "_own_gradients", lambda model: None)
    replayed = []
    model.layers[0].weight.register_hook(lambda gradient: replayed.append(gradient.data_ptr()))
    train_once(model)
    assert model.layers[0].weight.grad.data_ptr() in replayed


def test_the_recording_leaves_buffers_and_random_state_as_they_were(monkeypatch):
    model = Small().cuda()
    restored: list[torch.Tensor] = []
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: restored.append(state))
    copies = []
    original = torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, other, *a: copies.append(id(self)) or original(self, other, *a))
    graph_model(model, BATCH)
    state = torch.cuda.get_rng_state()
    train_once(model)
    assert len(restored) == 1 and torch.equal(restored[0], state)
    assert {id(buffer) for buffer in model.buffers()} <= set(copies)


def test_keys_and_types_stay(model: Small):
    assert model.state_dict().keys() == Small().state_dict().keys()
    train_once(model)
    assert model.state_dict().keys() == Small().state_dict().keys()
    assert isinstance(model, Small) and "forward" not in vars(model)


def test_a_second_training_records_anew(model: Small):
    train_once(model)
    kind, recorded = type(model), model.calls
    graph_model(model, BATCH // 2)
    assert type(model) is kind
    train_once(model)
    assert model.calls == recorded + 1, "no longer the whole micro-batch"
    train_once(model, BATCH // 2)
    assert model.calls > recorded + 2


def test_a_copy_records_its_own(model: Small):
    train_once(model)
    twin = copy.deepcopy(model)
    before = twin.calls
    train_once(twin)
    assert twin.calls > before + 1


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_it_is_recorded_under_autocast(model: Small, name: str):
    precision = Precision(name, torch.device("cuda", 0), graphed=True)
    for _ in range(2):
        with precision.autocast():
            output = model(torch.randn(BATCH, 16, device="cuda"))
        assert output.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
        precision.backward(output.float().square().mean())
    assert model.layers[0].weight.grad.dtype == torch.float32


def test_a_model_called_with_more_than_tensors_is_refused(model: Small):
    with pytest.raises(UsageError, match="Small is called with x"):
        model(x=torch.randn(BATCH, 16, device="cuda"))
    with pytest.raises(UsageError, match="called with float"):
        model(torch.randn(BATCH, 16, device="cuda"), 1.0)
    with pytest.raises(UsageError, match="called with nothing"):
        model()


def test_a_model_that_waits_for_the_card_is_refused():
    class Waiting(Small):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.cuda.synchronize()
            return super().forward(x)

    model = Waiting().cuda()
    graph_model(model, BATCH)
    with pytest.raises(UsageError, match="Waiting cannot be recorded: CUDA error: operation not permitted") as raised:
        train_once(model)
    assert raised.value.suggestion == "Train without CUDA graphs."


def test_out_of_memory_while_recording_is_raised_as_it_is(gpu, monkeypatch):  # noqa: F811
    model = Small().cuda()
    graph_model(model, BATCH)

    def full(*args: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "make_graphed_callables", full)
        with pytest.raises(torch.OutOfMemoryError):
            train_once(model)
    train_once(model, BATCH // 2)
    assert model.calls == 1
    train_once(model)
    assert model.calls > 2, "recorded after all, once there is memory"
