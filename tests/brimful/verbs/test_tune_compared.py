"""`tune` asks at last whether the model learns sooner with its plan, in worlds whose answer is
known.
"""

from dataclasses import dataclass

import pytest

from brimful.show.headline import headline
from brimful.values import Outcome, Place, Record
from brimful.verbs.tune import tune
from tests.brimful.verbs.world import Learning, World, work

ASKED = ("my-train", "--batch-size", "16")


def tuned(world: World, argv: tuple[str, ...] = ASKED, **more) -> Record:
    return work(world, tune, argv, device="cpu", budget="1GiB", **({"compare": True} | more))


def row(record: Record, name: str):
    return next((row for row in record.plan.settings if row.name == name), None)


def beside_each_other(world: World) -> list[int]:
    return [int(trial.settings["batch_size"]) for trial in world.launched if trial.stop_after_s]


def test_a_plan_that_learns_sooner_is_named_with_the_time_to_the_same_loss():
    world = Learning(teaches=1.0)
    record = tuned(world)
    size = row(record, "batch_size").effective
    assert size > 16 and record.comparison is not None and record.comparison.better == "B"
    assert beside_each_other(world) == [16, size, size, 16]
    sentence = headline(record).sentence
    assert f"Batch size {size} has the highest throughput" in sentence
    assert "Beside your own settings (A), the fastest (B): B processes" in sentence
    assert sentence.endswith("× the time: take it.") and "not compared" not in sentence


def test_a_plan_that_learns_later_is_not_the_plan():
    record = tuned(Learning(teaches=0.0))
    batch_size = row(record, "batch_size")
    assert batch_size.effective == batch_size.requested == 16
    assert record.plan.command_line == "my-train --batch-size 16"
    assert record.plan.environment == {} and record.plan.gain is None
    assert "processes more samples a second and learns later" in batch_size.why
    sentence = headline(record).sentence
    assert sentence.startswith(
        "Your own settings stay, batch size 16: those with the highest throughput learn later"
    )
    assert sentence.endswith("do not take it.")


@pytest.mark.parametrize("teaches", [0.0, 1.0])
def test_a_size_of_ones_own_is_trained_and_planned_where_the_script_without_a_flag_has_it(teaches):
    place = Place("script", "/work/train.py", 6, 13, 16, "batch_size = 16", "data.py:51")
    world = Learning(teaches=teaches, places=(place,))
    record = tuned(world, ("my-train",), settings={"batch_size": 40})
    own, planned = [trial for trial in world.launched if trial.stop_after_s][:2]
    assert (own.settings["batch_size"], world.batch(own)) == (40, 40)
    assert own.command.places == planned.command.places == {"batch_size": place}
    assert record.plan.places == {"batch_size": place}
    assert (row(record, "batch_size").effective == 40) is (record.comparison.better == "A")
    same = tuned(Learning(teaches=teaches), settings={"batch_size": 40})
    assert headline(record).sentence == headline(same).sentence


def test_the_learning_rate_that_goes_with_the_batch_size_may_make_it_the_better():
    record = tuned(Learning(teaches=0.5), (*ASKED, "--lr", "0.001"))
    size, rate = row(record, "batch_size").effective, row(record, "lr")
    assert size > 16 and record.comparison.better == "B"
    assert rate.requested == 0.001
    assert rate.effective == pytest.approx(0.001 * (size / 16) ** 0.5, rel=0.01)  # Adam
    assert f"--lr {rate.effective}" in record.plan.command_line
    assert f"--batch-size {size}" in record.plan.command_line


def test_nothing_is_compared_unasked_or_where_the_time_limit_leaves_no_room():
    for more in ({"compare": None}, {"compare": False}, {"compare": None, "time_limit_s": 60.0}):
        world = Learning(teaches=0.0)
        record = tuned(world, **more)
        assert record.comparison is None and not beside_each_other(world)
        assert "Learning was not compared" in headline(record).sentence


def test_a_time_limit_with_room_gives_each_run_its_share():
    world = Learning(teaches=1.0)
    assert tuned(world, compare=None, time_limit_s=400.0).comparison is not None
    [seconds] = {trial.stop_after_s for trial in world.launched if trial.stop_after_s}
    assert 80 < seconds < 100


def test_nothing_is_compared_where_the_batch_size_stays():
    world = Learning(sample_s=0.001, overhead_s=0.0)
    assert row(tuned(world), "batch_size").effective == 16 and not beside_each_other(world)


@dataclass
class Failing(Learning):
    """It crashes when it trains for long."""

    def launch(self, trial, *rest, **more):
        self.outcome_of = lambda trial, size: Outcome.CRASHED if trial.stop_after_s else None
        return super().launch(trial, *rest, **more)


def test_where_a_side_does_not_train_for_so_long_the_plan_stands_without_a_comparison():
    record = tuned(Failing(teaches=0.0))
    assert record.plan is not None and record.comparison is None
    assert row(record, "batch_size").effective > 16
    assert any("learning was not compared: A (my-train" in note.problem for note in record.notes)
