"""Settings are checked when they are made, by their dotted names, and the engine's public names are all there."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful.train
from brimful.errors import UsageError
from brimful.train import BatchingConfig, CheckpointConfig, Config, OptimizerConfig, ScalingConfig, ScheduleConfig
from brimful.train.config import DataConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [("epochs", 0), ("epochs", float("inf")), ("max_steps", 0), ("seed", -1), ("precision", "fp8"), ("clip_norm", -1.0),
     ("parallel", "ddp2"), ("on_nan", "ignore"), ("eval_every_epochs", 0), ("log_every_s", 0)],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_by_its_dotted_name(name, value, tmp_path):
    with pytest.raises(UsageError, match=rf"config\.{name} = "):
        Config(out=tmp_path, **{name: value})


PARTS = {
    "batch": BatchingConfig, "optimizer": OptimizerConfig, "schedule": ScheduleConfig, "scaling": ScalingConfig,
    "checkpoints": CheckpointConfig, "data": DataConfig,
}  # fmt: skip
FIELDS = [("config", field.name) for field in dataclasses.fields(Config)]
FIELDS += [(f"config.{part}", field.name) for part, kind in PARTS.items() for field in dataclasses.fields(kind)]
WRONG = {
    "bool": [1, 0, "yes", None, [True]],
    "int": ["1", 1.5, True, float("nan"), [1], b"1", object()],
    "float": ["1e-3", True, [0.5], 1j, object()],
    "str": [1, True, b"auto", ["auto"], None],
    "Path": [1, 1.5, True, None, ["out"]],
}


def wrong_values(prefix: str, name: str) -> list:
    annotation = typing.get_type_hints(Config if prefix == "config" else PARTS[prefix[7:]])[name]
    kind, _, optional = getattr(annotation, "__name__", str(annotation)).partition(" | ")
    values = WRONG.get(kind, [None, 1, "adamw", {}, Path("x")])  # another part
    return [value for value in values if not (optional and value is None)]


@pytest.mark.parametrize(("prefix", "name"), FIELDS)
def test_a_value_of_another_type_is_refused_by_its_dotted_name(prefix, name, tmp_path):
    for value in wrong_values(prefix, name):
        with pytest.raises(UsageError) as refused:
            Config(**{"out": tmp_path, name: value}) if prefix == "config" else PARTS[prefix[7:]](**{name: value})
        assert str(refused.value).startswith(f"{prefix}.{name} = "), (value, refused.value)


# Every number of these is outside what any setting of the name may be.
OUTSIDE = {
    "int": st.integers(max_value=-1),
    "float": st.one_of(st.just(math.nan), st.just(-math.inf), st.floats(max_value=-1e-9)),
    "str": st.sampled_from(["", "no such thing", "12 parsecs"]),
}
ANY_TEXT = {("config.checkpoints", "resume")}  # a path


@pytest.mark.parametrize(("prefix", "name"), FIELDS)
@given(data=st.data())
def test_a_value_that_no_training_can_have_is_refused_by_its_dotted_name(prefix, name, data):
    fields = dataclasses.fields(Config if prefix == "config" else PARTS[prefix[7:]])
    kind = str(next(f.type for f in fields if f.name == name)).partition(" | ")[0]
    if kind not in OUTSIDE or (prefix, name) in ANY_TEXT:
        return
    value = data.draw(OUTSIDE[kind])
    with pytest.raises(UsageError) as refused:
        Config(**{"out": "out", name: value}) if prefix == "config" else PARTS[prefix[7:]](**{name: value})
    assert str(refused.value).startswith(f"{prefix}.{name} = ")


def test_numbers_of_other_libraries_become_json(tmp_path):
    config = Config(out=str(tmp_path), epochs=2, batch=BatchingConfig(micro_batch=numpy.int64(8)), clip_norm=numpy.float32(1))
    assert json.loads(json.dumps(config.as_json()))["batch"]["micro_batch"] == 8
    assert config.epochs == 2 and config.clip_norm == 1.0


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("every_epochs", value) for value in (0, -1, math.nan, math.inf)),
        *(("every_steps", value) for value in (0, -5, 1.5)),
        *(("every_minutes", value) for value in (0, -0.1)),
        *(("keep_last", value) for value in (0, -1, 1.5, True)),
        ("resume", ""),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused_by_its_dotted_name(name, value):
    with pytest.raises(UsageError, match=rf"config\.checkpoints\.{name}"):
        CheckpointConfig(**{name: value})


def test_intervals_can_be_switched_off_and_combined():
    config = CheckpointConfig(every_epochs=None, every_steps=5, every_minutes=0.5)
    assert (config.every_epochs, config.every_steps, config.every_minutes) == (None, 5, 0.5)
