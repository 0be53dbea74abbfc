from __future__ import annotations

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, load_model, save_file
from torch import nn

from brimful.errors import CheckpointDamaged, NewerCheckpoint
from brimful.train.checkpoints import checkpoint as whole
from brimful.train.checkpoints.checkpoint import Disk
from tests.train.checkpoints.states import STATES, same, sealed, training_state

FILES = ["model.safetensors", "state.safetensors", "state.json"]


def written(folder, state=None, **facts):
    whole.write(
        Disk(), folder, training_state(3) if state is None else state, **{"step": 3, "score": 0.5, "best": "min", **facts}
    )
    return folder


@settings(max_examples=60, deadline=None)
@given(STATES)
def test_every_state_comes_back_from_the_disk_to_the_bit(tmp_path_factory, state):
    folder = written(tmp_path_factory.mktemp("one") / "checkpoint", state)
    assert same(whole.read(folder).state, state)


def test_a_checkpoint_is_two_files_of_safetensors_and_one_of_json(tmp_path):
    folder = written(tmp_path / "one")
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    index = json.loads((folder / "state.json").read_text())
    assert (index["format"], index["step"], index["score"]) == (1, 3, 0.5)


@pytest.mark.parametrize("score", [None, 0.1, -0.0, float("inf"), float("-inf"), float("nan")])
def test_every_score_comes_back(tmp_path, score):
    assert same(whole.read_facts(written(tmp_path / "one", score=score)).score, score)


def test_the_model_s_file_is_of_use_without_brimful(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    folder = written(tmp_path / "one", {"model": model.state_dict(), "epoch": 1})
    other = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    other.load_state_dict(load_file(folder / "model.safetensors"))
    assert same(dict(other.state_dict()), dict(model.state_dict()))


def test_a_model_with_tied_weights_is_loaded_by_safetensors_own_function(tmp_path):
    def tied():
        model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
        model["head"].weight = model["embedding"].weight
        return model

    model, other = tied(), tied()
    folder = written(tmp_path / "one", {"model": model.state_dict()})
    assert load_model(other, folder / "model.safetensors") == (set(), [])
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert other["head"].weight is other["embedding"].weight


def test_what_is_loaded_does_not_hold_on_to_the_file(tmp_path):
    folder = written(tmp_path / "one")
    state = whole.read(folder).state
    with open("/proc/self/maps") as maps:
        assert str(folder) not in maps.read()
    assert same(state, training_state(3))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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
        whole.read_facts(folder)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_found(tmp_path, name):
    folder = written(tmp_path / "one")
    (folder / name).unlink()
    with pytest.raises(CheckpointDamaged, match=rf"{name} is damaged: it is missing"):
        whole.read_facts(folder)


def test_a_file_exchanged_for_another_of_the_same_size_is_found(tmp_path):
    folder, other = written(tmp_path / "one"), written(tmp_path / "other", training_state(4))
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointDamaged, match=r"model\.safetensors is damaged: its checksum is"):
        whole.read(folder)


def test_damage_is_found_before_a_tensor_is_used(tmp_path, monkeypatch):
    folder = written(tmp_path / "one")
    with (folder / "state.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    monkeypatch.setattr(whole, "load_file", lambda *_, **__: pytest.fail("a tensor was loaded"))
    with pytest.raises(CheckpointDamaged):
        whole.read(folder)


def test_a_newer_format_is_refused_with_both_numbers(tmp_path):
    folder = written(tmp_path / "one")
    (folder / "state.json").write_bytes(sealed(b'{"format":7,"all":"else is unknown"}'))
    with pytest.raises(NewerCheckpoint) as raised:
        whole.read(folder)
    assert "format 7" in raised.value.problem and "format 1" in raised.value.problem and raised.value.suggestion


@pytest.mark.parametrize(
    "body", [b"{}", b'{"format":1}', b'{"format":"x"}', b'{"format":1,"step":1,"score":null,"files":[]}', b"[1]"]
)
def test_an_index_of_something_else_is_no_checkpoint(tmp_path, body):
    folder = written(tmp_path / "one")
    (folder / "state.json").write_bytes(sealed(body))
    with pytest.raises(CheckpointDamaged, match=r"no checkpoint's index|cut off or changed"):
        whole.read(folder)


def test_a_tree_that_names_a_tensor_nobody_has_is_damage_and_no_crash(tmp_path):
    folder = written(tmp_path / "one")
    content = (folder / "state.json").read_bytes().replace(b'"norm.bias"]', b'"norm.boas"]')
    body = content[: content.rindex(b',"crc32"')] + b"}"
    (folder / "state.json").write_bytes(sealed(body))
    with pytest.raises(CheckpointDamaged, match="do not belong together"):
        whole.read(folder)


def test_a_file_of_tensors_that_others_wrote_is_not_taken_for_ours(tmp_path):
    folder = written(tmp_path / "one")
    save_file({"x": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(CheckpointDamaged, match="bytes"):
        whole.read(folder)


def test_an_error_of_the_disk_while_reading_is_damage_and_named(tmp_path, monkeypatch):
    folder = written(tmp_path / "one")

    def broken(path):
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(whole, "_checksum", broken)
    with pytest.raises(CheckpointDamaged, match=r"model\.safetensors is damaged: it cannot be read \(EIO"):
        whole.read(folder)
