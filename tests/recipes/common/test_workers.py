from __future__ import annotations

import itertools
import os

import pytest

from brimful.errors import BrimfulError
from recipes.common.workers import ALONE, CHUNK, Workers


def negative(number: int) -> int:
    return -number


def die(_: int) -> None:
    os._exit(9)


@pytest.mark.parametrize("count", [0, 1, ALONE - 1, ALONE + CHUNK // 2 + 5 * CHUNK])
def test_items_come_back_in_order_from_however_many_processes(count: int):
    for processes in (1, 2):
        with Workers(processes) as workers:
            assert list(workers.map(negative, iter(range(count)))) == [-n for n in range(count)]


def test_what_is_not_wanted_to_the_end_can_be_left():
    with Workers(2) as workers:
        assert list(itertools.islice(workers.map(negative, itertools.count()), 3)) == [0, -1, -2]


def test_a_worker_that_dies_is_an_error():
    with Workers(2) as workers, pytest.raises(BrimfulError, match="ended before its time"):
        list(workers.map(die, range(ALONE)))
