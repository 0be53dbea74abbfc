"""The gradient noise scale, on a problem where it is known."""

import random
import statistics

import pytest
import torch

from brimful_train.step.noise_scale import NoiseScale, PassNorms, squared_norm


def norms(chance: random.Random, dimensions: int, samples: int, parts: int) -> tuple[float, float]:
    """(mean squared norm of the gradients of `parts` batches, that of all samples) where a
    sample's gradient is a 1 in each dimension and Gaussian noise of variance 16."""
    spread = (16 * parts / samples) ** 0.5
    small = [[1 + chance.gauss(0, spread) for _ in range(dimensions)] for _ in range(parts)]
    big = [statistics.fmean(column) for column in zip(*small, strict=True)]
    return (
        statistics.fmean(sum(value**2 for value in part) for part in small),
        sum(value**2 for value in big),
    )


@pytest.mark.parametrize(("samples", "parts"), [(16, 2), (64, 16)])
def test_it_is_that_of_the_closed_form(samples, parts):
    """trace of the covariance 16 x 20, squared norm 20: a noise scale of 16 samples."""
    values = []
    for seed in range(10):
        chance, scale = random.Random(seed), NoiseScale()
        for _ in range(300):
            small, big = norms(chance, 20, samples, parts)
            scale = scale.add(samples / parts, small, samples, big)
        values.append(scale.trace / scale.square)
    assert statistics.median(values) == pytest.approx(16, rel=0.1)


def test_the_first_measurements_count_alike_and_later_ones_fade():
    scale = NoiseScale()
    for big_square in (2.0, 4.0):  # small: 1 sample, big: 2
        scale = scale.add(1, 10.0, 2, big_square)
    assert (scale.trace, scale.measured) == (2 * (10 - 3.0), 2)
    for _ in range(3000):
        scale = scale.add(1, 1.0, 2, 1.0)
    assert scale.trace == pytest.approx(0, abs=1e-6) and scale.square == pytest.approx(1.0)


def test_what_is_no_part_or_no_number_is_left_out():
    scale = NoiseScale().add(1, 10.0, 2, 8.0)
    for step in ((2, 10.0, 2, 4.0), (1, 10.0, 2, 0.0), (1, float("inf"), 2, 4.0)):
        assert scale.add(*step) is scale
    assert scale.add(1, float("nan"), 2, 4.0) is scale
    assert scale.samples == pytest.approx(4 / 6)
    assert NoiseScale().samples is None and NoiseScale(-1.0, 1.0, 1).samples is None


def test_gradients_of_any_kind_have_a_norm_and_the_backward_pass_goes_on():
    """Sparse, in double and in half precision."""
    table = torch.nn.Embedding(5, 3, sparse=True)
    double = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    half = torch.nn.Parameter(torch.full((3,), 1.01, dtype=torch.bfloat16))
    parameters, norms = [table.weight, double, half], PassNorms()
    norms.watch(parameters)
    assert norms.watches
    rows = table(torch.tensor([1, 1, 2]))
    ((rows.double() * double).sum() + (rows * half).sum()).backward()
    gradients = [p.grad.to_dense().double() for p in parameters if p.grad is not None]
    expected = sum(float(gradient.square().sum()) for gradient in gradients)
    taken = norms.take()
    assert taken is not None and float(taken) == pytest.approx(expected, rel=1e-5)
    assert float(squared_norm(parameters)) == pytest.approx(expected, rel=1e-5)
    norms.unwatch()
    (double.sum() + half.sum()).backward()
    assert norms.take() is None and not norms.watches
