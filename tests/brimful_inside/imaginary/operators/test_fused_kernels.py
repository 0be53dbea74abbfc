"""What is one kernel on CUDA is one while the imaginary GPU is there, and PyTorch is as before
afterwards."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from brimful_inside.imaginary.operators.fused_kernels import _FAST_PATH


def has_meta_kernel(name):
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::" + name, "Meta")


def test_a_script_with_meta_tensors_of_its_own_gets_gradients_of_mish_too(gpu):
    users = torch.empty(3, 4, device="meta", requires_grad=True)
    F.mish(users).sum().backward()
    assert users.grad.shape == (3, 4) and users.grad.device.type == "meta"


@pytest.mark.skipif(
    not has_meta_kernel("_native_multi_head_attention"),
    reason="this release of PyTorch has no shapes for it",
)
@pytest.mark.parametrize("weights", [(), (False,), (True, True), (True, False)])
def test_the_fast_path_has_the_shapes_that_later_releases_give_it(weights):
    layer, x = (
        nn.MultiheadAttention(8, 2, batch_first=True).to("meta"),
        torch.empty(3, 5, 8, device="meta"),
    )
    projections = (
        layer.in_proj_weight,
        layer.in_proj_bias,
        layer.out_proj.weight,
        layer.out_proj.bias,
    )
    given = (x, x, x, 8, 2, *projections, None, *weights)
    with torch.no_grad():
        theirs = torch._native_multi_head_attention(*given)
        ours = _FAST_PATH["_native_multi_head_attention"](None, None, given, {})
    assert [t.shape for t in ours] == [t.shape for t in theirs]


def test_dropout_keeps_a_mask_of_one_byte_an_element(gpu):
    card = torch.randn(1000, 1024, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    dropped = F.dropout(card, 0.5)
    assert torch.cuda.memory_allocated() - before == 1000 * 1024 * (4 + 1)
    dropped.sum().backward()
    assert F.dropout(card, 0.5, training=False) is card


@pytest.mark.parametrize("options", [{}, {"length": 17_000}, {"center": False}])
def test_an_inverse_short_time_transform_has_the_shape_it_has_on_the_cpu(gpu, options):
    def there_and_back(device):
        given = {
            "n_fft": 400,
            "hop_length": 160,
            "window": torch.ones(400, device=device),
            **options,
        }
        length = given.pop("length", None)
        spectrum = torch.stft(
            torch.randn(2, 16_000, device=device), return_complex=True, **given
        ).requires_grad_()
        back = torch.istft(spectrum, length=length, **given)
        back.sum().backward()
        return back.shape

    assert there_and_back("cuda") == there_and_back("cpu")
