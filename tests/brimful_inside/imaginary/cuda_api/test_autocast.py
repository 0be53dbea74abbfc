"""Autocast by CUDA's lists, and how long the casts of weights live."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from brimful_inside.imaginary.cuda_api.autocast import (
    BANNED,
    ELSEWHERE,
    FP32,
    FP32_BY_DTYPE,
    LOWER_PRECISION,
    PROMOTE,
    autocast_operations,
)

HALF, SINGLE = torch.half, torch.float32
DTYPES = {
    "product": (lambda x, half: x @ x, HALF),
    "linear": (lambda x, half: F.linear(x, x), HALF),
    "einsum": (lambda x, half: torch.einsum("ij,jk->ik", x, x), HALF),
    "sum of two": (lambda x, half: x + x, SINGLE),
    "exp": (lambda x, half: half.exp(), SINGLE),
    "softmax": (lambda x, half: half.softmax(-1), SINGLE),
    "sum": (lambda x, half: half.sum(), SINGLE),
    "layer norm": (lambda x, half: F.layer_norm(half, (4,)), SINGLE),
    "loss": (lambda x, half: F.mse_loss(half, half), SINGLE),
    "power": (lambda x, half: half.pow(2), SINGLE),
    "relu": (lambda x, half: F.relu(half), HALF),
    "twice": (lambda x, half: half * 2, HALF),
    "the widest": (lambda x, half: torch.addcmul(half, half, x), SINGLE),
    "double": (lambda x, half: x.double() @ x.double(), torch.float64),
}


@pytest.mark.parametrize("name", DTYPES)
def test_matrix_products_are_cast_and_sums_are_not(gpu, name):
    function, dtype = DTYPES[name]
    x = torch.randn(4, 4, device="cuda")
    with torch.autocast("cuda"):
        assert function(x, x @ x).dtype == dtype
    assert (x @ x).dtype == SINGLE


def test_every_operation_that_the_installed_release_casts_has_a_policy_and_one_without_is_seen():
    policies = {*LOWER_PRECISION, *FP32, *FP32_BY_DTYPE, *PROMOTE, *BANNED, *ELSEWHERE}
    installed = autocast_operations()
    assert "matmul" in installed and installed <= policies, installed - policies
    assert installed - (policies - {"upsample_bilinear2d"}) == {"upsample_bilinear2d"}


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_an_image_is_upsampled_in_float32(gpu, mode):
    """A half image costs its copy in float32 and gives float32, which the next layer casts back."""
    image = torch.randn(2, 3, 32, 32, device="cuda", dtype=torch.half)
    with torch.autocast("cuda"):
        before = torch.cuda.memory_allocated()
        larger = F.interpolate(image, scale_factor=2, mode=mode)
        assert larger.dtype == torch.float32 and larger.shape == (2, 3, 64, 64)
        assert torch.cuda.memory_allocated() - before == larger.nbytes
    assert F.interpolate(image, scale_factor=2, mode=mode).dtype == torch.half


def test_contexts_nest_and_decorate(gpu):
    card = torch.randn(4, 4, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled() and (card @ card).dtype == torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert not torch.is_autocast_enabled() and (card @ card).dtype == torch.float32
        assert (card @ card).dtype == torch.bfloat16

    @torch.amp.autocast("cuda")
    def product(tensor):
        return tensor @ tensor

    assert product(card).dtype == torch.half
    with torch.cuda.amp.autocast():
        assert (card @ card).dtype == torch.half


def test_a_weight_is_cast_once_and_its_cast_lives_until_the_outermost_context_ends(gpu):
    weight = nn.Parameter(torch.randn(1000, 1000, device="cuda"))
    data = torch.randn(1000, 1000, device="cuda")
    with torch.no_grad(), torch.autocast("cuda"):
        before = torch.cuda.memory_allocated()
        with torch.autocast("cuda"):
            F.linear(data[:1], weight)
            F.linear(data[:1], weight)
        gpu.workspaces.clear()
        assert torch.cuda.memory_allocated() - before == 2_000_384, "one half copy, once"
    assert torch.cuda.memory_allocated() == before


def test_cross_entropy_keeps_logits_in_half_and_their_logarithms_in_both(gpu):
    """log_softmax gets its input's dtype, so only nll_loss casts: 2 + 4 bytes an element are kept,
    and 512 twice."""
    logits = torch.randn(1000, 1024, device="cuda", dtype=torch.half, requires_grad=True)
    target = torch.zeros(1000, dtype=torch.long, device="cuda")
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda"):
        loss = F.cross_entropy(logits, target)
    assert loss.dtype == torch.float32
    assert torch.cuda.memory_allocated() - before == 1000 * 1024 * (2 + 4) + 2 * 512


def test_binary_cross_entropy_is_refused_as_on_cuda(gpu):
    card = torch.rand(3, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(card, card)


def test_autocast_of_the_host_is_untouched(gpu):
    host = torch.randn(2, 2)
    for device, dtype in (("cpu", torch.bfloat16), ("cuda", torch.float32)):
        with torch.autocast(device, dtype=torch.bfloat16):
            assert (host @ host).dtype == dtype


def test_an_operation_of_a_library_is_cast_as_it_registered(gpu):
    @torch.library.custom_op("brimful_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    torch.library.register_autocast(twice, "cuda", torch.bfloat16)
    wide = torch.randn(4, device="cuda")
    with torch.autocast("cuda"):
        assert twice(wide).dtype == torch.ops.brimful_tests.twice(wide).dtype == torch.bfloat16
    assert twice(wide).dtype == torch.float32


@pytest.fixture
def roi_align():
    """torchvision's operation, or a stand-in with its schema and its check where torchvision is not
    installed."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # a build for another torch
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define(
            "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
            "SymInt pooled_width, "
            "int sampling_ratio, bool aligned) -> Tensor"
        )

        def meta(features, rois, scale, height, width, ratio, aligned):
            torch._check(features.dtype == rois.dtype, lambda: "features and rois of two dtypes")
            return features.new_empty(rois.shape[0], features.shape[1], height, width)

        library.impl("roi_align", meta, "Meta")
        yield torch.ops.torchvision.roi_align
        library._destroy()
    else:
        yield torch.ops.torchvision.roi_align


def test_torchvisions_roi_align_takes_two_dtypes_under_autocast_and_answers_in_the_first(
    gpu, roi_align
):
    features, rois = (
        torch.randn(2, 8, 32, 32, device="cuda").half(),
        torch.zeros(5, 5, device="cuda"),
    )
    with torch.autocast("cuda", dtype=torch.half):
        assert roi_align(features, rois, 1.0, 7, 7, 2, False).dtype == torch.half
        assert roi_align(features.float(), rois.half(), 1.0, 7, 7, 2, False).dtype == torch.float32
    with pytest.raises(RuntimeError):
        roi_align(features, rois, 1.0, 7, 7, 2, False)
