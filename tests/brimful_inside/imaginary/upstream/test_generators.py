"""Generators of the card that share a state, as PyTorch 2.6 to 2.15 have them."""

import pytest
import torch


def test_a_generator_goes_on_with_the_state_that_it_is_given(gpu):
    """graphsafe_get_state, PyTorch 2.6 to 2.15: both have one state, whichever is seeded."""
    generator = torch.cuda.default_generators[0]
    shared = generator.graphsafe_get_state()
    for one, other in ((generator, shared), (shared, generator)):
        assert one.seed() == one.initial_seed() == other.initial_seed()
        one.manual_seed(7)
        assert other.initial_seed() == 7 and torch.equal(one.get_state(), other.get_state())
    assert str(shared.device) == "cuda:0"
    other = torch.Generator("cuda").set_state(generator.get_state())
    assert torch.equal(other.get_state(), shared.get_state())


def test_a_copy_of_the_state_goes_its_own_way(gpu):
    """clone_state and graphsafe_set_state, PyTorch 2.6 to 2.15."""
    generator = torch.Generator(device="cuda")
    generator.manual_seed(3)
    old, clone = generator.graphsafe_get_state(), generator.clone_state()
    assert torch.equal(clone.get_state(), old.get_state()) and clone.initial_seed() == 3
    generator.graphsafe_set_state(clone)
    generator.manual_seed(4)
    assert (clone.initial_seed(), old.initial_seed()) == (4, 3)
    generator.graphsafe_set_state(old)
    assert generator.initial_seed() == 3


def test_a_state_of_the_host_is_refused(gpu):
    """graphsafe_set_state, PyTorch 2.6 to 2.15."""
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type"):
        torch.cuda.default_generators[0].graphsafe_set_state(torch.Generator())
