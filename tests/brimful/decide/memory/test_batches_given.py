"""Whether a loader follows the batch size, by what it gave at several sizes."""

import pytest

from brimful.decide.memory.bracket import Given, loader_cap


def given(batch, sizes=(5, 12), ranks=1, accumulated=lambda size: 1) -> dict[int, Given]:
    return {size: Given(batch(size), batch(size) * ranks * accumulated(size)) for size in sizes}


@pytest.mark.parametrize(
    ("shown", "length", "cap"),
    [
        (given(lambda size: size), None, None),
        (given(lambda size: min(size, 2)), None, 2),
        (given(lambda size: 9), None, 9),
        (given(lambda size: 128), None, None),
        (given(lambda size: 128, (5, 12, 500)), None, 128),
        (given(lambda size: max(size, 16)), None, None),
        (given(lambda size: max(size, 16), (5, 12, 500)), None, None),
        (given(lambda size: min(size, 64), (5, 12, 1806)), None, 64),
        (given(lambda size: min(size, 64), (5, 12, 1806)), 64, None),
        (given(lambda size: min(size, 64), (5, 12, 1806), ranks=2), 2000, 64),
        (given(lambda size: max(1, size // 8), ranks=8), None, None),
        (given(lambda size: min(size, 4), accumulated=lambda size: size // 4), None, None),
        (
            given(
                lambda size: min(size, 64),
                (5, 12, 1806),
                accumulated=lambda size: max(1, size // 64),
            ),
            None,
            None,
        ),
        (given(lambda size: size // 2, (6, 12, 1806)), None, None),
        ({}, None, None),
    ],
)
def test_a_cap_is_what_two_sizes_show_and_no_share_of_a_step(shown, length, cap):
    assert loader_cap(shown, length) == cap
