import collections
import enum
import json
import pickle
import random
from unittest import mock

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_model, save_file
from torch import nn

from brimful.errors import CheckpointDamaged, OtherFormat, UsageError
from brimful_train.checkpoints import checkpoint as whole
from brimful_train.checkpoints.checkpoint import Disk, pack, unpack
from tests.brimful_train.checkpoints.states import (
    STATES,
    same,
    sealed,
    training_state,
)

FILES = ["model.safetensors", "state.safetensors", "state.json"]


def written(folder, state=None, **facts):
    whole.write(
        Disk(),
        folder,
        training_state(3) if state is None else state,
        **{"step": 3, "score": 0.5, "best": "min", **facts},
    )
    return folder


@settings(max_examples=150, deadline=None)
@given(STATES)
def test_every_state_comes_back_from_the_disk_to_the_bit(tmp_path_factory, state):
    folder = written(tmp_path_factory.mktemp("one") / "checkpoint", state)
    assert same(whole.read(folder).state, state)


@pytest.mark.parametrize("score", [None, 0.1, -0.0, float("inf"), float("-inf"), float("nan")])
def test_a_checkpoint_is_two_files_of_safetensors_and_one_of_json(tmp_path, score):
    folder = written(tmp_path / "one", score=score, best="max")
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert json.loads((folder / "state.json").read_text())["format"] == whole.FORMAT
    index = whole.read_index(folder)
    assert (index.step, index.best) == (3, "max") and same(index.score, score)


def test_the_model_s_file_is_of_use_without_brimful_also_with_tied_weights(tmp_path):
    def tied():
        model = nn.ModuleDict(
            {
                "embedding": nn.Embedding(5, 3),
                "norm": nn.BatchNorm1d(3),
                "head": nn.Linear(3, 5, bias=False),
            }
        )
        model["head"].weight = model["embedding"].weight
        return model

    model, other = tied(), tied()
    folder = written(tmp_path / "one", {"model": model.state_dict(), "epoch": 1})
    assert load_model(other, folder / "model.safetensors") == (set(), [])
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert other["head"].weight is other["embedding"].weight


def test_what_is_loaded_does_not_hold_on_to_the_file(tmp_path):
    folder = written(tmp_path / "one")
    state = whole.read(folder).state
    with open("/proc/self/maps") as maps:
        assert str(folder) not in maps.read()
    assert same(state, training_state(3))


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(name=st.sampled_from(FILES), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_bit_changed_anywhere_is_found(tmp_path_factory, name, place, bit):
    folder = written(tmp_path_factory.mktemp("one") / "checkpoint")
    content = bytearray((folder / name).read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointDamaged, match=name):
        whole.read(folder)


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(FILES), share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_off_anywhere_is_found(tmp_path_factory, name, share):
    folder = written(tmp_path_factory.mktemp("one") / "checkpoint")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(CheckpointDamaged, match=name):
        whole.read_index(folder)


def missing(folder):
    (folder / "state.safetensors").unlink()


def exchanged(folder):
    other = written(folder.with_name("other"), training_state(4))  # of the same size
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())


def foreign(folder):
    save_file({"x": torch.zeros(2)}, folder / "model.safetensors")


def of_an_unknown_tensor(folder):
    content = (folder / "state.json").read_bytes().replace(b'"norm.bias"]', b'"norm.boas"]')
    (folder / "state.json").write_bytes(sealed(content[: content.rindex(b',"crc32"')] + b"}"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (missing, r"state\.safetensors is damaged: it is missing"),
        (exchanged, r"model\.safetensors is damaged: its checksum is"),
        (foreign, r"model\.safetensors is damaged: it has .* bytes"),
        (of_an_unknown_tensor, "do not belong together"),
    ],
)
def test_each_damage_is_named(tmp_path, damage, words):
    folder = written(tmp_path / "one")
    damage(folder)
    with pytest.raises(CheckpointDamaged, match=words):
        whole.read(folder)


@pytest.mark.parametrize(("number", "age"), [(7, "newer"), (1, "older")])
def test_another_format_is_refused_with_both_numbers(tmp_path, number, age):
    folder = written(tmp_path / "one")
    (folder / "state.json").write_bytes(sealed(b'{"format":%d,"all":"else is unknown"}' % number))
    with pytest.raises(
        OtherFormat, match=f"of format {number}, .* format {whole.FORMAT}"
    ) as raised:
        whole.read(folder)
    assert age in raised.value.explanation and raised.value.suggestion


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"format":%d}' % whole.FORMAT,
        b'{"format":"x"}',
        b'{"format":%d,"step":1,"score":null,"files":[]}' % whole.FORMAT,
        b"[1]",
    ],
)
def test_an_index_of_something_else_is_no_checkpoint(tmp_path, body):
    folder = written(tmp_path / "one")
    (folder / "state.json").write_bytes(sealed(body))
    with pytest.raises(CheckpointDamaged, match=r"no checkpoint's index|cut off or changed"):
        whole.read(folder)


def test_an_error_of_the_disk_while_reading_is_damage_and_named(tmp_path, monkeypatch):
    folder = written(tmp_path / "one")

    monkeypatch.setattr(
        whole, "_checksum", mock.Mock(side_effect=OSError(5, "Input/output error", "a file"))
    )
    with pytest.raises(
        CheckpointDamaged, match=r"model\.safetensors is damaged: it cannot be read \(EIO"
    ):
        whole.read(folder)


@pytest.fixture
def no_pickle(monkeypatch):
    """A pickle runs what its writer wants: none is made or read."""

    refused = mock.Mock(side_effect=AssertionError("a pickle was made or read"))
    for name in ("Pickler", "Unpickler", "dump", "dumps", "load", "loads"):
        monkeypatch.setattr(pickle, name, refused)
    for name in ("save", "load"):
        monkeypatch.setattr(torch, name, refused)


@pytest.mark.usefixtures("no_pickle")
def test_a_checkpoint_is_saved_and_loaded_where_pickle_does_not_work(tmp_path):
    assert same(whole.read(written(tmp_path / "one")).state, training_state(3))
    with pytest.raises(AssertionError, match="pickle"):  # that this test can fail
        torch.save({}, tmp_path / "x.pt")


# --- a state as JSON and tensors ---


def there_and_back(state):
    packed = pack(state)
    return unpack(json.loads(json.dumps(packed.tree, allow_nan=False)), packed.tensors)


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
    ],
    ids=["random", "conjugates", "names"],
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
    Kind, Name = enum.IntEnum("Kind", {"ONE": 1}), enum.StrEnum("Name", {"A": "a"})
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
