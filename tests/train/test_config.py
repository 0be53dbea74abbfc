"""Settings are checked when they are made, by their dotted names, and the engine's public names are all there."""

from __future__ import annotations

import json

import pytest

import brimful.train
from brimful.errors import UsageError
from brimful.train import Config


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", 0), ("epochs", float("inf")), ("max_steps", 0), ("seed", -1), ("precision", "fp8"), ("clip_norm", 0.0),
     ("parallel", "ddp2"), ("on_nan", "ignore"), ("eval_every_epochs", 0), ("log_every_s", 0)],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_its_dotted_name(name, value, tmp_path):
    with pytest.raises(UsageError, match=rf"config\.{name} = "):
        Config(out=tmp_path, **{name: value})


def test_a_budget_that_is_no_memory_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'a lot' is no amount of memory"):
        Config(out=tmp_path, memory_budget="a lot")


def test_a_config_is_json(tmp_path):
    told = json.loads(json.dumps(Config(out=tmp_path).as_json()))
    assert told["batch"]["micro_batch"] == 64 and told["optimizer"]["name"] == "adamw"


def test_the_public_names_are_all_there():
    for name in brimful.train.__all__:
        assert getattr(brimful.train, name) is not None
    assert dir(brimful.train) == sorted(brimful.train.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        brimful.train.fitt  # noqa: B018
