import os

import pytest

from brimful.errors import BrimfulError
from recipes.common.workers import ALONE, CHUNK, mapped


def negative(number: int) -> int:
    return -number


def die(_: int) -> None:
    os._exit(9)


@pytest.mark.parametrize("count", [0, 1, ALONE - 1, ALONE + CHUNK // 2 + 5 * CHUNK])
@pytest.mark.parametrize("processes", [1, 2])
def test_items_come_back_in_order_from_however_many_processes(count: int, processes: int):
    assert list(mapped(negative, range(count), processes)) == [-n for n in range(count)]


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(BrimfulError, match="ended before its work was done"):
        list(mapped(die, range(ALONE), 2))
