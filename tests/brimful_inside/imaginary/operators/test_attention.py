"""Attention by the back-end a real card would pick, and what each keeps for the backward pass."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from brimful_inside.imaginary.operators.attention import CUDNN, EFFICIENT, FLASH, MATH, Call, choose
from tests.brimful_inside.imaginary.conftest import peak_of

A100, T4, H100, RTX3090 = (8, 0), (7, 5), (9, 0), (8, 6)


def call(dtype=torch.half, shape=(2, 4, 64, 64), grad=True, **options):
    query, key, value = (
        torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad) for _ in range(3)
    )
    return Call(query, key, value, **options)


@pytest.mark.parametrize(
    ("given", "capability", "backend"),
    [
        (call(), A100, FLASH),
        (call(torch.bfloat16), RTX3090, FLASH),
        (call(torch.float32), A100, EFFICIENT),
        (call(torch.float64), A100, MATH),
        (call(), T4, EFFICIENT),  # an old card has no flash and no bfloat16
        (call(torch.bfloat16), T4, MATH),
        (call(attn_mask=torch.empty(64, 64, dtype=torch.bool, device="meta")), A100, EFFICIENT),
        (
            call(shape=(2, 4, 64, 36)),
            A100,
            FLASH,
        ),  # a head size that is no multiple of 8 is padded for flash
        (call(shape=(2, 4, 64, 512)), A100, EFFICIENT),
        (call(shape=(4, 64, 64)), A100, MATH),  # three dimensions are for the math kernel alone
        (call(torch.float32, shape=(2, 4, 64, 30)), A100, MATH),
        (call(shape=(2, 4, 64, 224)), RTX3090, EFFICIENT),  # training large heads on a small cache
        (call(shape=(2, 4, 64, 224), grad=False), RTX3090, FLASH),
    ],
)
def test_the_back_end_is_that_of_the_card_the_dtype_and_the_shape(given, capability, backend):
    assert choose(given, capability) == backend


def test_hopper_prefers_cudnn_since_the_release_that_does():
    newer = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)
    assert choose(call(), H100) == (CUDNN if newer else FLASH)


def test_a_mask_that_is_trained_is_not_for_cudnn(enter):
    enter(capability=H100)
    bias = torch.zeros(4, 64, 64, device="cuda", dtype=torch.half, requires_grad=True)
    query = torch.zeros(2, 4, 64, 64, device="cuda", dtype=torch.half, requires_grad=True)
    F.scaled_dot_product_attention(query, query, query, attn_mask=bias[None]).sum().backward()
    assert bias.grad is not None and bias.grad.shape == bias.shape


@pytest.mark.parametrize(
    ("shape", "grad", "fits"),
    [
        ((64, 64), False, True),
        ((1, 4, 1, 64), False, True),
        ((2, 1, 64, 64), True, False),
        ((4, 64, 64), False, False),
        ((2, 2, 64, 64), False, False),
    ],
)
def test_cudnn_takes_a_mask_of_two_or_four_dimensions_without_a_gradient(shape, grad, fits):
    mask = torch.empty(shape, dtype=torch.half, device="meta", requires_grad=grad)
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]):
        assert choose(call(attn_mask=mask), H100) == (CUDNN if fits else MATH)


def test_the_script_decides_where_it_chooses():
    for backends, chosen in (
        (SDPBackend.MATH, MATH),
        ([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], EFFICIENT),
    ):
        with sdpa_kernel(backends):
            assert choose(call(), A100) == chosen
    none = pytest.raises(RuntimeError, match="No available kernel")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), none:
        choose(call(torch.float32), A100)


def kept(dtype, **options):
    """Bytes kept between forward and backward by attention over (2, 4, 64, 64), beside its inputs
    and its output."""
    query, key, value = (
        torch.randn(2, 4, 64, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)
    )
    before = torch.cuda.memory_allocated()
    out = F.scaled_dot_product_attention(query, key, value, **options)
    bytes_kept = torch.cuda.memory_allocated() - before - out.numel() * out.element_size()
    out.sum().backward()
    assert query.grad.shape == query.shape
    return bytes_kept


def test_fused_kernels_keep_a_sum_for_each_row_and_their_random_state(gpu):
    assert kept(torch.half, is_causal=True) == kept(torch.float32) == 2 * 4 * 64 * 4 + 2 * 512


def test_math_keeps_the_whole_matrix_of_weights(gpu):
    with sdpa_kernel(SDPBackend.MATH):
        assert kept(torch.float32) >= 2 * 4 * 64 * 64 * 4


def taken_backward(dtype, transposed, size=64):
    """Bytes that attention over (2, 4, 128, size) takes for its backward pass at its worst, beside
    three gradients."""
    shape = (2, 128, 4, size) if transposed else (2, 4, 128, size)
    leaves = [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
    query, key, value = (leaf.transpose(1, 2) if transposed else leaf for leaf in leaves)
    out = F.scaled_dot_product_attention(query, key, value)
    grad = torch.randn_like(out)
    return peak_of(lambda: out.backward(grad)) - 3 * grad.nbytes


def test_flashs_backward_pass_sums_the_querys_gradient_in_float32(gpu):
    temporaries = 2 * 128 * 4 * 64 * 4 + 2 * 4 * 128 * 4
    assert taken_backward(torch.half, transposed=True) == temporaries
    copied = 2 * 2 * 4 * 128 * 64 * 2  # gradient and output, where heads come before the length
    assert taken_backward(torch.half, transposed=False) == temporaries + copied


def test_the_efficient_kernels_backward_pass_has_a_workspace_by_blocks(gpu):
    """transformers/cuda/mem_eff_attention/kernel_backward.h: blocks of 64 x 64 with 16 bytes each,
    for 2 x 4 heads."""
    row_sums, blocks = 2 * 4 * 128 * 4, 2 * 4 * (128 // 64) * (16 + 64 * 64 * 4)
    assert taken_backward(torch.float32, transposed=True) == row_sums + -(-blocks // 512) * 512
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        assert taken_backward(torch.half, transposed=True) == row_sums + -(-blocks // 512) * 512
        # heads of 128 and 128 queries are one block on this card
        large = 2 * 4 * (16 + 128 * 128 * 4)
        assert (
            taken_backward(torch.half, transposed=True, size=128)
            == row_sums + -(-large // 512) * 512
        )


def test_wrong_dtypes_are_refused(gpu):
    query, key = (
        torch.randn(1, 1, 8, 8, device="cuda"),
        torch.randn(1, 1, 8, 8, device="cuda", dtype=torch.half),
    )
    with pytest.raises(RuntimeError, match="to have the same dtype"):
        F.scaled_dot_product_attention(query, key, key)


@pytest.mark.parametrize("dtype", [torch.half, torch.float32])
def test_grouped_queries_run(gpu, dtype):
    query, key = (torch.randn(2, heads, 64, 64, device="cuda", dtype=dtype) for heads in (8, 2))
    assert F.scaled_dot_product_attention(query, key, key, enable_gqa=True).shape == query.shape


def test_groups_of_heads_are_for_the_efficient_kernel_since_the_release_that_has_them():
    query, key = (torch.empty((2, heads, 64, 64), device="meta") for heads in (8, 2))
    newer = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)
    for grouped in (Call(query, key, key, enable_gqa=True), Call(query, key[:, :1], key[:, :1])):
        assert choose(grouped, A100) == (EFFICIENT if newer else MATH)


def test_a_boolean_mask_becomes_one_of_the_querys_dtype_at_once(gpu):
    """attention.cpp, convert_boolean_attn_mask: no mask in float32 on the way."""
    query = torch.randn(1, 2, 256, 64, device="cuda", dtype=torch.half)
    mask = torch.ones(256, 256, dtype=torch.bool, device="cuda")
    beside = 2 * 512 + 512  # seed and offset, and the scalar that fills the mask
    peak = peak_of(lambda: F.scaled_dot_product_attention(query, query, query, attn_mask=mask))
    assert peak <= 256 * 256 * 2 + query.nbytes + beside + 2 * 512
