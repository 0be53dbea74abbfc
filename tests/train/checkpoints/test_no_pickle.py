"""A pickle runs what its writer wants: no checkpoint of ours is one, nor is read as one."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest
import torch

import brimful.train.checkpoints
from brimful.train.checkpoints.folder import Checkpoints
from brimful.train.config import CheckpointConfig
from tests.train.checkpoints.states import same, training_state

ROOM = Path(brimful.train.checkpoints.__file__).parent
PICKLERS = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "torch.distributed.checkpoint",
}
CALLS = {("torch", "save"), ("torch", "load"), ("numpy", "load"), ("numpy", "save")}


def picklers_in(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in PICKLERS}
        if isinstance(node, ast.ImportFrom) and node.module in PICKLERS:
            found.add(node.module)
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names if (node.module, alias.name) in CALLS}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and (node.value.id, node.attr) in CALLS:
            found.add(f"{node.value.id}.{node.attr}")
    return found


def test_no_file_of_the_room_knows_a_pickler():
    files = sorted(ROOM.rglob("*.py"))
    assert len(files) >= 6
    assert {path.name: picklers_in(path.read_text()) for path in files} == {path.name: set() for path in files}


@pytest.mark.parametrize(
    "source", ["import pickle", "from pickle import loads", "from torch import load", "import torch\ntorch.save(1, 2)"]
)
def test_the_search_for_picklers_finds_one(source):
    assert picklers_in(source)


def _refused(*_, **__):
    raise AssertionError("a pickle was made or read")


@pytest.fixture
def no_pickle(monkeypatch):
    for name in ("Pickler", "Unpickler", "dump", "dumps", "load", "loads"):
        monkeypatch.setattr(pickle, name, _refused)
    monkeypatch.setattr(torch, "save", _refused)
    monkeypatch.setattr(torch, "load", _refused)


def test_a_checkpoint_is_saved_and_loaded_where_pickle_does_not_work(no_pickle, tmp_path):
    checkpoints = Checkpoints(tmp_path / "all", CheckpointConfig(), pytest.fail)
    checkpoints.save(training_state(1), step=1, score=0.5)
    assert same(checkpoints.newest().state, training_state(1))


def test_a_pickle_would_have_been_noticed(no_pickle, tmp_path):
    with pytest.raises(AssertionError, match="pickle"):
        torch.save({}, tmp_path / "x.pt")
    with pytest.raises(AssertionError, match="pickle"):
        pickle.dumps(1)
