"""The rule by which a trial leaves work out."""

import pytest

from brimful_inside import left_out
from brimful_inside.left_out import Evaluations, alike_enough
from tests.brimful_inside.helper import config_of

LONG = left_out.MANY_OPERATIONS


def evaluations(**config):
    return Evaluations(config_of(folder="", device="cpu", eval_batches=2, **config))


@pytest.mark.parametrize(
    ("given", "steps", "operations", "stops"),
    [
        (5, 0, 0, False),
        (1, 1, 0, False),
        (2, 1, 0, True),
        (1, 1, LONG - 1, False),
        (1, 1, LONG, True),
    ],
)
def test_an_evaluation_is_cut_once_training_has_begun(given, steps, operations, stops):
    assert evaluations().stops(given, steps, operations) == stops
    assert not evaluations(cut=False).stops(given, steps, operations)


def test_an_evaluation_that_drew_ahead_of_a_long_first_batch_is_over_with_it():
    assert evaluations().is_over(2, True, LONG)
    for given, measured, operations in ((1, True, LONG), (2, False, LONG), (2, True, LONG - 1)):
        assert not evaluations().is_over(given, measured, operations)


@pytest.mark.parametrize(
    ("same", "alike", "same_numbers", "with_gradients", "enough"),
    [
        (3, 3, True, True, True),
        (2, 2, True, False, False),
        (3, 3, False, False, False),
        (1, 10, False, False, True),
        (1, 10, False, True, False),
    ],
)
def test_calls_that_differ_in_numbers_show_less_and_nothing_of_gradients(
    same, alike, same_numbers, with_gradients, enough
):
    assert alike_enough(same, alike, same_numbers, with_gradients) == enough
