"""The head: its size, and a dropout that follows from the seed alone."""

import copy

import pytest
import torch
from torch.func import functional_call, stack_module_state, vmap

from recipes.ood_dpo.head import EnergyHead, SeededDropout, make_head
from recipes.ood_dpo.settings import HeadOptions


def test_it_has_the_layers_and_parameters_of_the_paper():
    head = EnergyHead()
    assert [tuple(weight.shape) for weight in head.parameters() if weight.dim() == 2] == [
        (256, 512),
        (128, 256),
        (1, 128),
    ]
    assert sum(weight.numel() for weight in head.parameters()) == 164_353
    assert head.eval()(torch.randn(5, 512)).shape == (5,)


def test_weights_and_masks_follow_from_the_seed_and_leave_the_global_random_state():
    before = torch.random.get_rng_state()
    features = torch.randn(6, 512, generator=torch.Generator().manual_seed(0))
    one, again, other = (make_head(HeadOptions(), seed)(features) for seed in (3, 3, 4))
    assert torch.equal(one, again) and not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())


def dropped(layer: SeededDropout, rows: int = 512, units: int = 256) -> torch.Tensor:
    return layer(torch.ones(rows, units)) == 0


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_share_is_dropped_and_what_is_kept_makes_up_for_it(share):
    layer = SeededDropout(share, 1)
    found = torch.stack([layer(torch.ones(512, 256)) for _ in range(8)])
    error = 5 * (share * (1 - share) / found.numel()) ** 0.5  # five standard deviations
    assert abs(float((found == 0).double().mean()) - share) < error
    assert found.unique().tolist() == pytest.approx([0, 1 / (1 - share)])


def test_masks_of_rows_units_passes_and_seeds_are_independent():
    """Of two independent masks 0.25 is dropped by both; within five standard deviations."""
    masks = [
        dropped(layer)
        for layer in (SeededDropout(0.5, 1), SeededDropout(0.5, 2))
        for layer in [layer] * 2
    ]
    pairs = [(masks[0], one) for one in masks[1:]]
    pairs += [(one[:-1], one[1:]) for one in masks] + [(one[:, :-1], one[:, 1:]) for one in masks]
    pairs += [(one[:-1, :-1], one[1:, 1:]) for one in masks] + [
        (one[:-1, 1:], one[1:, :-1]) for one in masks
    ]
    for one, other in pairs:
        assert (
            abs(float((one & other).double().mean()) - 0.25)
            < 5 * (0.25 * 0.75 / one.numel()) ** 0.5
        )


def test_in_evaluation_nothing_is_dropped_and_the_count_stands():
    layer = SeededDropout(0.5, 1).eval()
    assert not dropped(layer).any() and int(layer.passes) == 0


def test_members_side_by_side_drop_what_they_drop_alone():
    heads = [make_head(HeadOptions(), seed) for seed in (0, 1, 7)]
    parameters, buffers = stack_module_state(copy.deepcopy(heads))
    bare = copy.deepcopy(heads[0]).to("meta")
    features = torch.randn(2, 16, 512, generator=torch.Generator().manual_seed(0))
    for some in features:  # the second pass has other masks
        together = vmap(lambda p, b, some=some: functional_call(bare, (p, b), (some,)))(
            parameters, buffers
        )
        alone = torch.stack([head(some) for head in heads])
        assert torch.allclose(together, alone, rtol=1e-5, atol=1e-6)
    assert buffers["drop_first.passes"].tolist() == [2, 2, 2]


def test_a_head_goes_on_with_the_masks_that_come_next():
    one, other = SeededDropout(0.5, 1), SeededDropout(0.5, 9)
    dropped(one)
    other.load_state_dict(one.state_dict())
    assert torch.equal(dropped(one), dropped(other))
