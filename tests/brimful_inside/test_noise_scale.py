"""The gradient noise scale, on a problem where it is known."""

import random
import statistics

import pytest

from brimful_inside.noise_scale import NoiseScale


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


@pytest.mark.parametrize(("samples", "parts"), [(16, 2), (64, 4), (64, 16), (256, 8)])
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
