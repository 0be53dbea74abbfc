import json
import subprocess
import sys
import textwrap
from contextlib import closing

import pytest
import torch
from torch import nn

from brimful_train.config import PRECISIONS
from brimful_train.model import precision as precision_module
from brimful_train.model.precision import Precision
from tests.brimful_inside.imaginary.conftest import card, enter, gpu, trace_file  # noqa: F401

CPU = torch.device("cpu")
CARD = torch.device("cuda", 0)


def tf32_flags() -> tuple[object, object]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def model_and_optimizer(fused: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(8, 3)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)


def one_update(model, optimizer, precision: Precision, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    for micro_batch in batch.chunk(2):
        with precision.autocast():
            loss = model(micro_batch).float().square().mean() / 2
        precision.backward(loss)
    precision.unscale(optimizer)
    precision.step(optimizer)


@pytest.mark.parametrize("name", PRECISIONS)
def test_forward_computes_in_the_precision_in_force_and_gradients_stay_fp32(name: str):
    model, optimizer = model_and_optimizer()
    precision = Precision(name, CPU)
    with precision.autocast():
        output = model(torch.ones(2, 8))
    assert output.dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
    one_update(model, optimizer, precision, torch.randn(4, 8))
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_accumulated_gradients_are_unscaled_once():
    """The gradient of two scaled micro-batches is that of the whole batch."""
    batch = torch.randn(4, 8)
    model, optimizer = model_and_optimizer()
    precision = Precision("fp16", CPU)
    precision.step = lambda optimizer: None  # type: ignore[method-assign]
    one_update(model, optimizer, precision, batch)
    accumulated = model.weight.grad.clone()
    model.zero_grad()
    model(batch).square().mean().backward()
    torch.testing.assert_close(accumulated, model.weight.grad, rtol=2e-3, atol=2e-3)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) has already been called"):
        precision.unscale(optimizer)


def test_an_update_given_up_may_be_made_anew():
    model, optimizer = model_and_optimizer()
    precision = Precision("fp16", CPU)
    precision.backward(model(torch.ones(2, 8)).sum())
    precision.unscale(optimizer)
    precision.forget(optimizer)
    one_update(model, optimizer, precision, torch.randn(4, 8))
    assert precision.skipped == 0
    Precision("fp32", CPU).forget(optimizer)


@pytest.mark.parametrize("fused", [True, False])
def test_an_infinite_gradient_skips_the_update_and_halves_the_scale(fused: bool):
    model, optimizer = model_and_optimizer(fused)
    precision = Precision("fp16", CPU)
    one_update(model, optimizer, precision, torch.randn(4, 8))
    before = model.weight.detach().clone()
    too_large = torch.full((4, 8), 1e4)  # its square is beyond fp16's 65504
    for batch, unchanged in ((too_large, True), (torch.randn(4, 8), False)):
        one_update(model, optimizer, precision, batch)
        assert torch.equal(model.weight, before) is unchanged
        assert (precision.skipped, precision.scale) == (1, 2.0**15)


def test_state_survives_json_and_goes_on_exactly():
    model, optimizer = model_and_optimizer()
    precision = Precision("fp16", CPU)
    for batch in (torch.randn(4, 8), torch.full((4, 8), 1e4), torch.randn(4, 8), torch.randn(4, 8)):
        one_update(model, optimizer, precision, batch)
    state = json.loads(json.dumps(precision.state_dict()))
    other = Precision("fp16", CPU)
    assert other.load_state_dict(state) is None
    assert other.state_dict() == precision.state_dict()
    assert (other.scale, other.skipped, state["scaler"]["_growth_tracker"]) == (2.0**15, 1, 2)


def test_going_on_in_another_precision_is_reported():
    half, full = Precision("fp16", CPU), Precision("fp32", CPU)
    assert (
        full.load_state_dict(half.state_dict())
        == "The checkpoint was made in fp16, and the training goes on in fp32."
    )
    assert "the loss scale begins at 65536" in (half.load_state_dict(full.state_dict()) or "")


def test_tf32_on_a_cpu_is_fp32_and_the_row_has_the_reason():
    row = Precision("tf32", CPU).row
    why = "TF32 is a format of NVIDIA's tensor cores, and the device is cpu"
    assert (row.requested, row.effective, row.why) == ("tf32", "fp32", why)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_the_row_names_a_cpu_without_instructions_for_it(name, monkeypatch):
    for supported in (True, False):
        monkeypatch.setattr(
            torch.ops.mkldnn, f"_is_mkldnn_{name}_supported", lambda supported=supported: supported
        )
        assert ("slower than fp32" in Precision(name, CPU).row.why) is not supported


@pytest.mark.parametrize(
    ("name", "device", "in_force"),
    [
        ("fp32", CARD, (False, False)),
        ("tf32", CARD, (True, True)),
        ("bf16", CARD, (False, True)),
        ("fp16", CARD, (False, True)),
        ("fp32", CPU, (False, True)),
    ],
)
def test_flags_of_the_card_are_set_where_it_computes_in_fp32_and_put_back(
    gpu,  # noqa: F811
    name,
    device,
    in_force,
):
    before = tf32_flags()
    assert before == (False, True), (
        "PyTorch's own: convolutions in TF32 unless a script decides otherwise"
    )
    with closing(Precision(name, device)) as precision:
        assert (precision.effective, tf32_flags()) == (name, in_force)
    assert tf32_flags() == before
    precision.close()
    assert tf32_flags() == before


def test_a_script_that_uses_the_newer_names_of_the_flags_keeps_them():
    """PyTorch then refuses the older names, in the whole process."""
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this PyTorch has the older names alone")
    script = """
        import torch
        from brimful_train.model.precision import _put_tf32, _set_tf32
        torch.backends.fp32_precision = "tf32"
        owners = torch.backends.cuda.matmul, torch.backends.cudnn.conv
        before = _set_tf32(False)
        print(*(owner.fp32_precision for owner in owners))
        _put_tf32(before)
        print(*(owner.fp32_precision for owner in owners))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["ieee", "ieee", "tf32", "tf32"]


def test_a_card_older_than_ampere_has_no_tf32(enter):  # noqa: F811
    enter(capability=(7, 5))
    with closing(Precision("tf32", CARD)) as precision:
        assert precision.effective == "fp32"
    assert precision.row.why == "TF32 needs compute capability 8.0, and the card has 7.5"
    assert "imitates it" in Precision("bf16", CARD).row.why


@pytest.mark.parametrize("name", PRECISIONS)
def test_an_update_runs_on_a_card(gpu, name: str):  # noqa: F811
    model = nn.Linear(8, 3).to(CARD)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with closing(Precision(name, CARD)) as precision:
        assert precision.effective == name
        one_update(model, optimizer, precision, torch.randn(4, 8, device=CARD))


@pytest.mark.parametrize(("has", "expected"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_what_the_processor_computes_fast(has, expected, monkeypatch):
    monkeypatch.setattr(precision_module, "_cpu_computes_bf16", lambda: has)
    with closing(Precision("auto", CPU)) as precision:
        assert (precision.row.requested, precision.effective) == ("auto", expected)


@pytest.mark.parametrize(("has", "expected"), [(True, "bf16"), (False, "fp16")])
def test_auto_on_a_card_is_bf16_where_it_has_that(has, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=False: has)
    assert precision_module._fast_on(torch.device("cuda", 0))[0] == expected
