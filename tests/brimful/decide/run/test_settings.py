"""The settings of a run: none is dropped, and each says what was asked, what is in force, and
why.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.command import parse
from brimful.decide.run.settings import (
    lever_of,
    settings_of,
    values_in_force,
    with_size,
)
from brimful.decide.run.smaller_batch_size import Size
from brimful.values import EffectiveSetting, Objective, Place, Plan, Source

names = st.sampled_from(["batch_size", "lr", "num_workers", "accumulation", "eval_batch_size"])
values = st.dictionaries(names, st.integers(1, 999), max_size=4)


def plan_of(settings: dict) -> Plan:
    rows = tuple(
        EffectiveSetting(name, None, value, "why", Source.MEASURED)
        for name, value in settings.items()
    )
    return Plan(Objective.THROUGHPUT, rows, "", True, 1, 0)


@given(st.sets(names), values, st.none() | values)
def test_what_was_given_comes_before_the_plan_and_nothing_is_dropped(opened, given_, planned):
    command = parse(("train", *(f"{{{name}}}" for name in sorted(opened))))
    rows = settings_of(command, None if planned is None else plan_of(planned), "p", given_)
    effective = {row.name: row.effective for row in rows}
    expected = (planned or {}) | given_
    assert {name: effective[name] for name in expected} == expected
    assert len(effective) == len(rows)
    assert all(row.why for row in rows)


@pytest.mark.parametrize(
    ("words", "planned", "in_force", "why"),
    [
        (("--num-workers", "2"), {"num_workers": 8}, (2, 2), "the plan's 8 has no place"),
        (("--batch-size", "64"), {"batch_size": 512}, (64, 512), "p7"),
    ],
    ids=["of any setting", "of the batch size"],
)
def test_a_value_written_out_stays_but_for_a_batch_size_and_both_are_named(
    words, planned, in_force, why
):
    (row, *_) = settings_of(parse(("train", *words)), plan_of(planned), "p7", {})
    assert (row.requested, row.effective) == in_force and why in row.why


def test_workers_that_a_plan_sets_at_the_loader_stand_with_file_and_line_and_those_it_left_do_not():
    place = Place("loader", "/work/data.py", 51, 0, 0, "return DataLoader(", "data.py:51")
    command = replace(parse(("train",)), places={"num_workers": place})
    changed = replace(
        plan_of({}), settings=(EffectiveSetting("num_workers", 0, 2, "faster", Source.MEASURED),)
    )
    (row,) = settings_of(command, changed, "p", {})
    assert (row.requested, row.effective) == (
        0,
        2,
    ) and row.why == "by the plan p: faster; set at data.py:51"
    left = replace(
        plan_of({}),
        settings=(EffectiveSetting("num_workers", 0, 0, "not worth it", Source.MEASURED),),
    )
    assert settings_of(parse(("train",)), left, "p", {}) == ()


def test_an_accumulation_that_nobody_sets_is_one():
    assert values_in_force(settings_of(parse(("train", "{accumulation}")), None, "", {})) == {
        "accumulation": 1
    }


@given(st.sampled_from(["train", "eval", "encoding", "setup", None]), st.sets(names))
def test_an_evaluation_out_of_memory_shrinks_its_own_size_and_never_the_trainings_where_it_has_one(
    phase, opened
):
    lever = lever_of(phase, tuple(opened))
    assert lever == (f"{phase}_batch_size" if f"{phase}_batch_size" in opened else "batch_size")


def test_a_smaller_size_leaves_all_other_settings_and_what_was_asked():
    rows = settings_of(
        parse(("train", "--batch-size", "64", "{accumulation}", "{lr}")), None, "", {"lr": 0.1}
    )
    after = {row.name: row for row in with_size(rows, "batch_size", Size(32, 2, "half"))}
    assert list(after) == [row.name for row in rows]
    assert {name: row.effective for name, row in after.items()} == {
        "batch_size": 32,
        "accumulation": 2,
        "lr": 0.1,
    }
    assert (after["batch_size"].requested, after["batch_size"].why) == (64, "half")
