from __future__ import annotations

import math

import pytest

from brimful.errors import UsageError
from brimful.train.checkpoints import CheckpointConfig


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
