"""Evaluations that are longer than the training that a trial makes, and whose operations depend on
the batch size.
"""

from collections import Counter
from dataclasses import dataclass, replace

import pytest

from brimful import predict
from brimful.measure import traces
from brimful_inside.simulator.trace import Free, Malloc, Phase, Row, Step
from tests.brimful.verbs.world import GIB, MIB, Uneven, World, reporting, work

ASKED = ("my-train", "--batch-size", "100")


@dataclass
class Generates(World):
    """Each sample of an evaluation's batch is looked at by itself, `looks` times."""

    linear: int = 100 * MIB
    looks: int = 3
    share: float = 0.1  # of what the training takes
    sees: bool = True

    def rows(self, size: int) -> list[Row]:
        rows: list[Row] = [Malloc(1, self.fixed, "aten.randn"), Phase("train")]
        for step in range(1, 5):
            rows += [Malloc(10 * step, self.linear * size, "aten.mm"), Free(10 * step), Step(step)]
        each = int(self.share * self.linear * size)
        looked = [
            row
            for at in range(self.looks * size)
            for row in (Malloc(100 + at, each, "aten.eq"), Free(100 + at))
        ]
        return rows + ([Phase("eval"), *looked] if self.sees else [])

    def _imaginary(self, trial, size, folder):
        self.sees = trial.ends.see_eval
        result = super()._imaginary(trial, size, folder)
        train = result.phases.get("train")
        if train is None:
            return result
        small = replace(train, allocated_bytes=int(self.share * train.allocated_bytes))
        return replace(
            result, phases={"train": train, "eval": small} if self.sees else {"train": train}
        )


def found(world):
    return work(world, predict, ASKED, gpu_memory="40GiB").prediction


def test_what_a_trial_has_shown_whole_others_leave_out_and_their_traces_can_be_compared():
    world = Generates()
    answer = found(world)
    assert [
        (trial.settings["batch_size"], trial.ends.see_eval) for trial in world.launched[:2]
    ] == [
        (5, True),
        (100, True),
    ]
    assert not any(trial.ends.see_eval for trial in world.launched[2:])
    assert answer.exact and len(world.launched) <= 4
    assert answer.phases.keys() >= {"train", "eval"}, "the size in question is seen whole"
    assert any(result.code == "evaluation-seen-once" for result in answer.warnings)
    assert answer.largest_batch_size == found(World(linear=100 * MIB)).largest_batch_size


def ranks(*worlds):
    """Of each trial as many reports as these, alike but for the size of their world."""
    return lambda result: replace(
        result,
        reports=tuple(
            replace(report, rank=rank, world_size=world)
            for report in result.reports
            for rank, world in enumerate(worlds)
        ),
    )


def test_ranks_of_one_training_show_it_once_and_trainings_one_after_another_each_time():
    world = Generates()
    answer = found(reporting(ranks(2, 2), world))
    assert not any(trial.ends.see_eval for trial in world.launched[2:])
    assert answer.exact and len(answer.cards) == 2
    assert answer.largest_batch_size == found(World(linear=100 * MIB)).largest_batch_size
    world = Generates()
    found(reporting(ranks(1, 1), world))
    assert all(trial.ends.see_eval for trial in world.launched)


class GeneratesUneven(Uneven):
    def rows(self, size: int) -> list[Row]:
        looks = range(1000 if self.trial.ends.see_eval else 0)
        looked = [
            row for at in looks for row in (Malloc(10_000 + at, 2 * MIB, "eq"), Free(10_000 + at))
        ]
        return [*super().rows(size), *([Phase("eval"), *looked] if looked else [])]

    def _imaginary(self, trial, size, folder):
        result = super()._imaginary(trial, size, folder)
        if "train" in result.phases:
            train = result.phases["train"]
            phases = {"train": train, "eval": replace(train, allocated_bytes=size)}
            result = replace(result, phases=phases if trial.ends.see_eval else {"train": train})
        return result


def test_trials_with_batches_as_they_are_drawn_leave_it_out_and_it_stays_in_the_answer():
    world = GeneratesUneven()
    answer = found(world)
    drawn = [trial for trial in world.launched if trial.as_drawn]
    assert any(trial.settings["batch_size"] == 100 for trial in drawn)
    assert not any(trial.ends.see_eval for trial in drawn)
    assert answer.phases.keys() >= {"train", "eval"}


@pytest.mark.parametrize(
    "world", [Generates(share=0.9), Generates(looks=0)], ids=["large", "short"]
)
def test_an_evaluation_that_is_large_or_short_is_seen_at_every_size(world):
    answer = found(world)
    assert all(trial.ends.see_eval for trial in world.launched)
    assert not any(result.code == "evaluation-seen-once" for result in answer.warnings)


def test_where_it_does_not_fit_remedies_are_named_and_their_trials_leave_the_evaluation_out():
    world = Generates(fixed=GIB)
    answer = work(world, predict, ASKED, gpu="rtx3070").prediction
    assert answer.verdict == "does_not_fit" and answer.breakdown is not None
    assert answer.what_if is not None and answer.what_if.remedies
    assert not any(trial.ends.see_eval for trial in world.launched if trial.what_ifs)


def test_a_trace_too_large_to_be_kept_is_read_for_what_it_shows_and_not_for_each_who_asks(
    monkeypatch,
):
    read: list[str] = []

    def decoded(path, *rest):
        read.append(path.parent.name)
        return original(path, *rest)

    original = traces._decoded
    monkeypatch.setattr(traces, "_decoded", decoded)
    monkeypatch.setattr(traces, "_KEPT_BYTES", 0)
    world = Generates()
    found(world)
    often = Counter(read)
    assert [often[f"trial-{number:03}"] for number in (1, 2, 3)] == [3, 2, 1]
    assert len(often) == len(world.launched) == 3


@dataclass
class StepsOn(World):
    """A script without a loader: each trial in search of an evaluation makes 20 more steps, and
    `late` takes as much more in the last of them."""

    linear: int = 100 * MIB
    late: int = 0

    def rows(self, size: int) -> list[Row]:
        rows: list[Row] = [Malloc(1, self.fixed, "aten.randn"), Phase("train")]
        for step in range(1, 25 if self.sees else 5):
            more = self.late if step == 24 else 0
            nbytes = self.linear * size + more
            rows += [Malloc(10 * step, nbytes, "aten.mm"), Free(10 * step), Step(step)]
        return rows

    def _imaginary(self, trial, size, folder):
        self.sees = trial.ends.see_eval
        result = super()._imaginary(trial, size, folder)
        return replace(result, phases={"train": result.phases["train"]} if result.phases else {})


def test_steps_that_repeat_in_search_of_an_evaluation_are_made_in_the_first_trial_alone():
    world = StepsOn()
    answer = found(world)
    assert [trial.ends.see_eval for trial in world.launched] == [True, False, False]
    assert answer.exact and not any("evaluation" in note.code for note in answer.warnings)
    assert answer.largest_batch_size == found(World(linear=100 * MIB)).largest_batch_size


def test_a_late_step_that_takes_more_is_made_in_every_trial():
    world = StepsOn(late=GIB)
    found(world)
    assert all(trial.ends.see_eval for trial in world.launched)
