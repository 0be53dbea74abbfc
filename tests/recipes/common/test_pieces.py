from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import DoesNotFit
from recipes.common.pieces import in_pieces

CPU = torch.device("cpu")


@given(
    items=st.lists(st.integers(1, 9), max_size=40),
    budget=st.integers(1, 50),
    fit=st.integers(1, 50),
)
def test_memory_that_is_missing_makes_the_pieces_smaller_and_loses_none(items, budget, fit):
    items.sort(reverse=True)
    sizes: list[int] = []

    def work(some: Sequence[int]) -> list[int]:
        if len(some) > fit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
        sizes.append(len(some))
        assert len(some) == 1 or len(some) * some[0] <= budget
        return list(some)

    pieces = in_pieces(items, work, budget, CPU, float)
    assert [item for piece in pieces for item in piece] == items
    assert max(sizes, default=0) <= min(budget, fit)


def test_what_does_not_fit_alone_is_reported_and_other_errors_are_raised():
    def lacks(_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")

    with pytest.raises(DoesNotFit, match="A single item does not fit"):
        list(in_pieces([1, 2, 3], lacks, 2, CPU))
    with pytest.raises(ZeroDivisionError):
        list(in_pieces([1], lambda _: 1 / 0, 1, CPU))
