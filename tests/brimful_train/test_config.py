"""Settings are checked when they are made, by their dotted names, and the engine's public names are
all there.
"""

import dataclasses
import json
import math
import typing
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import IterableDataset

import brimful_train
from brimful.errors import UsageError
from brimful_train import (
    BatchingConfig,
    CheckpointConfig,
    Config,
    OptimizerConfig,
    ScalingConfig,
    ScheduleConfig,
    Task,
)
from brimful_train.config import DataConfig

PARTS = {
    "batch": BatchingConfig,
    "optimizer": OptimizerConfig,
    "schedule": ScheduleConfig,
    "scaling": ScalingConfig,
    "checkpoints": CheckpointConfig,
    "data": DataConfig,
}
FIELDS = [("config", field.name) for field in dataclasses.fields(Config)]
FIELDS += [
    (f"config.{part}", field.name)
    for part, kind in PARTS.items()
    for field in dataclasses.fields(kind)
]
WRONG = {
    "bool": [1, 0, "yes", None, [True]],
    "int": ["1", 1.5, True, float("nan"), [1], b"1", object()],
    "float": ["1e-3", True, [0.5], 1j, object()],
    "str": [1, True, b"auto", ["auto"], None],
    "Path": [1, 1.5, True, None, ["out"]],
}


def kind_of(prefix: str) -> type:
    return Config if prefix == "config" else PARTS[prefix.removeprefix("config.")]


def type_of(prefix: str, name: str) -> tuple[str, bool]:
    """The name of a setting's type, and whether it may be None."""
    annotation = typing.get_type_hints(kind_of(prefix))[name]
    kind, _, none = getattr(annotation, "__name__", str(annotation)).partition(" | ")
    return kind, bool(none)


def refused(prefix: str, name: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        kind_of(prefix)(**({"out": "out"} if prefix == "config" else {}) | {name: value})
    assert str(caught.value).startswith(f"{prefix}.{name} = "), (value, caught.value)


@pytest.mark.parametrize(
    ("prefix", "name", "values"),
    [
        *(
            ("config", name, [0])
            for name in ("epochs", "max_steps", "eval_every_epochs", "log_every_s")
        ),
        ("config", "epochs", [math.inf]),
        ("config", "memory_budget", ["a lot", "", "200%"]),
        *(
            ("config.checkpoints", name, [0, math.nan, math.inf])
            for name in ("every_epochs", "every_minutes")
        ),
        ("config.checkpoints", "every_steps", [0, 1.5]),
        ("config.checkpoints", "every_samples", [0, 1.5]),
        ("config", "backend", ["", "cpu:gloo"]),
        ("config.checkpoints", "keep_last", [0, 1.5, True]),
        ("config.checkpoints", "resume", [""]),
        ("config.data", "memory_share", [0, 1.5]),
        ("config.data", "prefetch", [0]),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_dotted_name(prefix, name, values):
    for value in values:
        refused(prefix, name, value)


@pytest.mark.parametrize(("prefix", "name"), FIELDS)
def test_a_value_of_another_type_is_refused_by_its_dotted_name(prefix, name):
    kind, optional = type_of(prefix, name)
    for value in WRONG.get(kind, [None, 1, "adamw", {}, Path("x")]):  # else another part
        if value is not None or not optional:
            refused(prefix, name, value)


# Every number of these is outside what any setting of the name may be.
OUTSIDE = {
    "int": st.integers(max_value=-1),
    "float": st.one_of(st.just(math.nan), st.just(-math.inf), st.floats(max_value=-1e-9)),
    "str": st.sampled_from(["", "no such thing", "12 parsecs"]),
}
ANY_TEXT = {("config.checkpoints", "resume")}  # a path


@pytest.mark.parametrize(("prefix", "name"), FIELDS)
@settings(max_examples=20)
@given(data=st.data())
def test_a_value_that_no_training_can_have_is_refused_by_its_dotted_name(prefix, name, data):
    kind, _ = type_of(prefix, name)
    if kind in OUTSIDE and (prefix, name) not in ANY_TEXT:
        refused(prefix, name, data.draw(OUTSIDE[kind]))


def test_a_config_is_json_also_with_numbers_of_other_libraries(tmp_path):
    config = Config(
        out=str(tmp_path),
        epochs=2,
        batch=BatchingConfig(micro_batch=numpy.int64(8)),
        clip_norm=numpy.float32(1),
    )
    written = json.loads(json.dumps(config.as_json()))
    assert written["batch"]["micro_batch"] == 8 and written["optimizer"]["name"] == "adamw"
    assert config.epochs == 2 and config.clip_norm == 1.0


def test_the_public_names_are_all_there():
    assert None not in [getattr(brimful_train, name) for name in brimful_train.__all__]
    assert dir(brimful_train) == sorted(brimful_train.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        brimful_train.fitt  # noqa: B018


# --- what a Task refuses before anything is built ---


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    "data", [{"train_data": Endless()}, {"train_data": [1], "eval_data": Endless()}]
)
def test_a_data_set_that_has_no_indices_is_refused(data):
    with pytest.raises(UsageError, match="Endless is an IterableDataset") as caught:
        Task("stream", nn.Linear(1, 1), lambda model, batch: model(batch).mean(), **data)
    assert "__getitem__" in caught.value.suggestion
