"""Batches as trees: cut by samples, counted, moved."""

import dataclasses
from collections import UserDict
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import UsageError
from brimful_train.data.trees import bytes_in, cut, samples_in, to_device


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    names: list[str]
    scale: float

    def __post_init__(self) -> None:
        assert len(self.x) >= 4, "a whole batch"


class Packed:
    """A batch that knows its samples, which no tensor's first dimension counts."""

    def __init__(self, lengths):
        self.lengths = lengths
        self.tokens = torch.cat([torch.full((n,), n) for n in lengths])

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, part):
        return Packed(self.lengths[part])

    def to(self, device):
        self.moved = device
        return self


def rows(n):
    return torch.arange(n * 2).reshape(n, 2)


TREES = [
    lambda x, names: x,
    lambda x, names: (x, x + 1),
    lambda x, names: [x, {"a": x, "b": [x]}],
    lambda x, names: Pair(x, {"names": names}),
    lambda x, names: UserDict(x=x),
]


@pytest.mark.parametrize("make", TREES)
@given(n=st.integers(1, 8), data=st.data())
def test_the_pieces_of_a_batch_have_its_samples_and_its_kind(make, n, data):
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    x, names = rows(n), [str(number) for number in range(n)]
    piece, expected = cut(make(x, names), start, stop, n), make(x[start:stop], names[start:stop])
    assert type(piece) is type(expected) and repr(piece) == repr(expected)


def test_an_object_with_fields_is_cut_field_by_field_and_not_checked_as_a_whole_one():
    whole = Batch(rows(4), ["a", "b", "c", "d"], 0.5)
    piece = cut(whole, 1, 3, 4)
    assert isinstance(piece, Batch) and piece.names == ["b", "c"] and piece.scale == 0.5
    assert torch.equal(piece.x, rows(4)[1:3]) and len(whole.x) == 4


def test_an_object_with_slices_cuts_itself_and_a_single_number_belongs_to_every_piece():
    batch = (Packed([3, 1, 2]), torch.tensor(7), None)
    packed, *others = cut(batch, 1, 3, 3)
    assert packed.tokens.tolist() == [1, 2, 2] and others == [torch.tensor(7), None]
    assert samples_in(Packed([3, 1, 2])) == 3


@pytest.mark.parametrize("odd", [rows(3), torch.zeros(1, 2), ["a", "b"]])
def test_a_part_that_has_not_one_row_a_sample_is_refused(odd):
    with pytest.raises(UsageError, match="rows, and the batch has 4 samples"):
        cut((rows(4), odd), 0, 2, 4)


def test_samples_are_known_where_all_tensors_agree_and_bytes_are_those_of_all():
    assert samples_in({"x": rows(3), "n": torch.tensor(1)}) == samples_in(UserDict(x=rows(3))) == 3
    assert samples_in((rows(3), rows(4))) is None
    assert samples_in(["a"]) is None
    assert (
        bytes_in({"x": torch.zeros(3, 2), "y": [torch.zeros(3, dtype=torch.uint8)], "s": "text"})
        == 27
    )


def test_everything_goes_to_the_device():
    packed = Packed([1])
    moved = to_device([{"x": rows(2)}, packed, "text"], torch.device("meta"))
    assert (
        moved[0]["x"].device.type == "meta"
        and packed.moved == torch.device("meta")
        and moved[2] == "text"
    )
