"""The tiled loss is the plain one in value and gradients, for each member of an ensemble too, and
its memory is linear.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from recipes.ood_dpo.loss import all_pairs, head_loss
from recipes.ood_dpo.settings import HeadOptions

# Relative to the largest. PyTorch's softplus is linear above 20, which is 2e-9 away.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-5}


def plain(kind: str, low: torch.Tensor, high: torch.Tensor, options: HeadOptions) -> torch.Tensor:
    """From the definitions, with PyTorch's own functions."""
    differences = high[None, :] - low[:, None]
    targets = torch.cat([torch.zeros_like(low), torch.ones_like(high)])
    main = {
        "dpo": lambda: -F.logsigmoid(options.beta * differences).mean(),
        "hinge": lambda: (options.margin - differences).clamp(min=0).mean(),
        "bce": lambda: F.binary_cross_entropy_with_logits(torch.cat([low, high]), targets),
        "mse": lambda: (
            F.mse_loss(low.sigmoid(), torch.zeros_like(low))
            + F.mse_loss(high.sigmoid(), torch.ones_like(high))
        ),
    }[kind]()
    return main + options.lambda_reg * (low.pow(2).mean() + high.pow(2).mean())


def energies(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (
        3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ).to(dtype)


def graded(
    loss, low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    low, high = low.clone().requires_grad_(), high.clone().requires_grad_()
    value = loss(low, high)
    (7 * value.sum()).backward()
    assert low.grad is not None and high.grad is not None
    return value.detach(), low.grad, high.grad


def assert_alike(found, expected, tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().max()) <= tolerance * max(1e-6, float(other.abs().max()))


@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 40),
    m=st.integers(1, 40),
    tile=st.integers(1, 400),
    kind=st.sampled_from(["dpo", "hinge"]),
    beta=st.sampled_from([0.1, 1.0, 5.0]),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
)
def test_tiles_give_the_plain_loss_and_its_gradients(seed, n, m, tile, kind, beta, dtype):
    options = HeadOptions(loss=kind, beta=beta, lambda_reg=0.0)
    low, high = energies(seed, n, dtype=dtype), energies(seed + 1, m, dtype=dtype)
    factor, margin = {"dpo": (beta, 0.0), "hinge": (1.0, 1.0)}[kind]

    def tiled(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        return all_pairs(kind, low * factor, high * factor, margin, tile)

    expected = graded(lambda a, b: plain(kind, a, b, options), low.double(), high.double())
    assert_alike(graded(tiled, low, high), [one.to(dtype) for one in expected], TOLERANCE[dtype])
    assert_alike(
        [tiled(low, high)], [graded(tiled, low, high)[0]], TOLERANCE[dtype]
    )  # without gradients


@pytest.mark.parametrize("kind", ["dpo", "bce", "mse", "hinge"])
def test_a_variant_is_what_its_definition_says_and_members_side_by_side_are_what_they_are_alone(
    kind,
):
    options = HeadOptions(loss=kind)
    low, high = energies(0, 3, 31), energies(1, 3, 17)
    together = graded(head_loss(options), low, high)
    for member in range(3):
        alone = graded(lambda a, b: plain(kind, a, b, options), low[member], high[member])
        assert_alike([one[member] for one in together], alone, 1e-12)


def test_energies_far_apart_stay_finite_and_half_precision_is_widened():
    low, high = torch.tensor([1e4, -1e4]), torch.tensor([-1e4, 1e4])
    for kind in ("dpo", "bce", "mse", "hinge"):
        assert all(
            one.isfinite().all() for one in graded(head_loss(HeadOptions(loss=kind)), low, high)
        )
    with torch.autocast("cpu", torch.bfloat16):
        assert head_loss(HeadOptions())(low.bfloat16(), high.bfloat16()).dtype == torch.float32


def test_memory_is_linear_in_the_batch():
    """Of 8,192 pairs: under 8 MiB, where all differences at once take 256 MiB."""
    low, high = torch.randn(8192).requires_grad_(), torch.randn(8192).requires_grad_()
    with torch.profiler.profile(profile_memory=True) as profile:
        head_loss(HeadOptions())(low, high).backward()
    held = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    assert 0 < most < 8 * 2**20
