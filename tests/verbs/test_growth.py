"""`predict` warns of what a cut trial cannot see pile up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from world import MIB, World, work

from brimful.verbs import predict


@dataclass
class Growing(World):
    """A command that leaves memory on the card, of which its trials see the beginning."""

    growth: dict[str, int] = field(default_factory=dict)

    def _report(self, *args):
        return replace(super()._report(*args), growth=self.growth)


def warned(growth):
    said = work(Growing(growth=growth), predict, ("my-train", "--batch-size", "64"), gpu_memory="4GiB").prediction
    assert said.verdict == "fits"
    return [warning for warning in said.warnings if warning.code == "memory-grows"]


@pytest.mark.parametrize(("length", "fits"), [(20, True), (125, False)])
def test_an_evaluation_that_keeps_its_outputs_is_warned_of_and_said_not_to_fit_where_it_will_not(length, fits):
    (warning,) = warned({"eval": 75 * MIB, "eval_seen": 2, "eval_length": length})
    assert f"2 of {length} batches" in warning.problem and ("does not fit" in warning.explanation) is not fits


def test_steps_that_leave_memory_are_warned_of_and_numbers_are_not():
    (warning,) = warned({"train": 34 * MIB})
    assert warning.problem.startswith("each step leaves 34.0 MiB more on the card (at a batch size of "), (
        "of a size that was traced"
    )
    assert warned({"train": 512, "eval": 512, "eval_seen": 2, "eval_length": 125}) == []
    assert warned({}) == []
