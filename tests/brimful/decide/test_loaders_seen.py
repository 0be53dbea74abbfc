"""What the batches that loaders gave say of their sizes."""

import pytest

from brimful.decide.loaders_seen import are_uneven
from brimful_inside.wire import BatchSeen
from tests.brimful.decide.builders import loader, report, sample


def of(*batches, **more):
    """A trial whose training loader gave batches of so many samples and these shapes."""
    given = [BatchSeen(samples, shapes, None) for samples, shapes in batches]
    return sample([report([loader(batches=given, **more)])])


@pytest.mark.parametrize(
    ("trial", "uneven"),
    [
        (of((8, [[8, 30], [8]]), (8, [[8, 31], [8]])), True),
        (of((8, [[8, 30]]), (8, [[8, 30]]), (3, [[3, 30]])), False),
        (of((8, [[8, 30]]), (8, [[8, 31]]), role="eval"), False),
        (sample([]), False),
    ],
    ids=["other shapes", "a smaller last one", "of an evaluation", "none"],
)
def test_batches_of_as_many_samples_in_other_shapes_are_uneven_and_a_smaller_last_one_is_not(
    trial, uneven
):
    assert are_uneven(trial) is uneven
