import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.memory.peak_curve import PeakFit, fit_peaks

MIB = 1 << 20
COEFFICIENTS = st.tuples(st.integers(1, 10**9), st.integers(0, 10**8), st.integers(0, 10**5))


def margin(fit: PeakFit, batch_size: int) -> float:
    """The relative half width of its interval."""
    return fit.interval(batch_size)[1] / fit.at(batch_size) - 1


@given(COEFFICIENTS, st.lists(st.integers(1, 500), min_size=3, max_size=6, unique=True))
def test_points_without_noise_give_the_curve_they_lie_on(coefficients, sizes):
    def peak(size):
        return sum(c * size**i for i, c in enumerate(coefficients))

    fit = fit_peaks([(size, peak(size)) for size in sizes])
    for size in sizes:
        assert fit.at(size) == pytest.approx(
            peak(size), rel=1e-5, abs=1024
        )  # bytes: less is no memory


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(1e6, 1e11)), min_size=1, max_size=8))
def test_no_coefficient_is_negative_and_no_peak_falls_with_the_batch(points):
    fit = fit_peaks(points)
    assert min(fit.fixed, fit.linear, fit.quadratic) >= 0
    assert fit.at(10) <= fit.at(100) * (1 + 1e-9)
    low, high = fit.interval(50)
    assert 0 <= low <= fit.at(50) <= high


def test_two_points_make_a_line_and_one_a_constant():
    line = fit_peaks([(4, 140.0), (8, 180.0)])
    assert (line.fixed, line.linear, line.quadratic) == pytest.approx((100, 10, 0))
    assert fit_peaks([(4, 140.0)]).at(100) == pytest.approx(140)


def test_the_interval_grows_with_extrapolation_and_with_noise():
    rng = random.Random(3)
    clean = fit_peaks([(b, 400 * MIB + b * 10 * MIB) for b in (4, 16, 64)])
    noisy = fit_peaks(
        [(b, (400 * MIB + b * 10 * MIB) * rng.uniform(0.97, 1.03)) for b in (4, 8, 16, 32, 64)]
    )
    assert margin(clean, 64) < margin(clean, 128) < margin(clean, 512)
    assert margin(noisy, 64) > margin(clean, 64)


def test_repeats_that_disagree_widen_the_interval():
    agree = fit_peaks([(4, 100.0), (4, 100.0), (16, 200.0), (64, 600.0)])
    differ = fit_peaks([(4, 95.0), (4, 105.0), (16, 200.0), (64, 600.0)])
    assert margin(differ, 64) > margin(agree, 64)


def test_without_a_peak_there_is_no_curve():
    with pytest.raises(ValueError, match="peak"):
        fit_peaks([])
