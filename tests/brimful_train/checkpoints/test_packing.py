import collections
import enum
import json
import math
import random

import numpy
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from brimful.errors import UsageError
from brimful_train.checkpoints.checkpoint import pack, unpack
from tests.brimful_train.checkpoints.states import DTYPES, STATES, bits, same


def there_and_back(state):
    packed = pack(state)
    return unpack(json.loads(json.dumps(packed.tree, allow_nan=False)), packed.tensors)


@settings(max_examples=300, deadline=None)
@given(STATES)
def test_every_state_comes_back_to_the_bit(state):
    assert same(there_and_back(state), state)


def test_the_comparison_itself_sees_one_bit_one_type_and_one_order():
    assert not same({"a": 0.0}, {"a": -0.0})
    assert not same([1], (1,))
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not same({0: 1}, {"0": 1})
    assert not same(torch.tensor([math.nan]), torch.tensor([math.inf]))
    assert not same(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert not same(torch.zeros(2), 0.0)
    assert same(
        {"a": [math.nan, torch.tensor(math.nan)]}, {"a": [math.nan, torch.tensor(math.nan)]}
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_survives_without_dimensions_and_without_elements(dtype):
    scalar = (
        torch.frombuffer(bytearray([1] * dtype.itemsize), dtype=torch.uint8).view(dtype).reshape(())
    )
    back = there_and_back({"scalar": scalar, "none": scalar.reshape(1)[:0].reshape(0, 4)})
    assert back["scalar"].shape == () and bits(back["scalar"]) == bits(scalar)
    assert back["none"].shape == (0, 4) and back["none"].dtype == dtype


def optimizer_state():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


FLAT = torch.arange(1000.0)
COMPLEX = torch.tensor([1 + 2j, 3 - 4j])
NAMES = {
    "a.b": torch.tensor(1),
    "a": {"b": torch.tensor(2)},
    "__metadata__": torch.tensor(3),
    0: torch.tensor(4),
}


@pytest.mark.parametrize(
    "state",
    [
        {"random": random.getstate(), "long": -(7**200), "edges": [2**53, 2**53 + 1, -(2**63)]},
        {"a": COMPLEX, "b": COMPLEX.conj(), "c": COMPLEX.conj().imag},
        {"model": {**NAMES, "0": torch.tensor(5)}},  # names that would collide in the file
        {"optimizer": optimizer_state()},
    ],
    ids=["random", "conjugates", "names", "optimizer"],
)
def test_states_of_a_training_come_back_to_the_bit(state):
    assert same(there_and_back(state), state)


def test_tied_weights_are_saved_once_and_come_back_tied():
    weight = torch.randn(3, 4)
    packed = pack(
        {"model": {"embedding": weight, "head": weight.view(3, 4)}, "ema": {"head": weight}}
    )
    assert list(packed.tensors["model"]) == ["embedding"] and not packed.tensors["state"]
    assert packed.tied == {"head": "embedding"}
    back = unpack(packed.tree, packed.tensors)
    assert back["model"]["embedding"] is back["model"]["head"] is back["ema"]["head"]


def test_what_the_model_shares_is_in_the_model_s_file_even_where_the_model_comes_last():
    weight = torch.randn(3)
    packed = pack({"ema": {"weight": weight}, "model": {"weight": weight}})
    assert list(packed.tensors["model"]) == ["weight"] and not packed.tensors["state"]
    assert list(packed.tree) == ["ema", "model"]


def test_views_that_overlap_come_back_as_equal_copies_of_their_own_size():
    square = FLAT.view(10, 100)
    state = {
        "model": {
            "whole": FLAT,
            "part": FLAT[:10],
            "next": FLAT[5:15],
            "square": square,
            "t": square.T,
        }
    }
    packed = pack(state)
    assert same(unpack(packed.tree, packed.tensors), state)
    stored = packed.tensors["model"]
    assert stored["part"].untyped_storage().nbytes() == 40
    assert len({t.untyped_storage().data_ptr() for t in stored.values()}) == 5


def test_subclasses_come_back_as_the_plain_types():
    class Kind(enum.IntEnum):
        ONE = 1

    class Name(enum.StrEnum):
        A = "a"

    pair = collections.namedtuple("pair", "x y")(1, 2)
    state = {
        "n": numpy.float64(0.1),
        "k": Kind.ONE,
        "s": Name.A,
        "d": collections.OrderedDict(x=1),
        "p": pair,
        Name.A: 5,
    }
    assert same(
        there_and_back(state), {"n": 0.1, "k": 1, "s": "a", "d": {"x": 1}, "p": (1, 2), "a": 5}
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (numpy.zeros(3), "numpy.ndarray"),
        (numpy.int64(3), "numpy.int64"),
        ({1, 2}, "builtins.set"),
        (nn.Linear(1, 1), "torch.nn.modules.linear.Linear"),
        (torch.zeros(3, device="meta"), "on the meta device"),
        (torch.zeros(3).to_sparse(), "sparse"),
    ],
)
def test_what_cannot_be_held_is_refused_with_its_place(value, words):
    with pytest.raises(UsageError) as raised:
        pack({"optimizer": {"groups": [value]}})
    assert "state.optimizer.groups.0" in raised.value.problem and words in raised.value.problem
    assert raised.value.suggestion
