"""A script without a flag: its batch size is found in a trial, checked at another number, and set
in all that follow.
"""

from dataclasses import replace

import pytest

from brimful.decide.memory.bracket import CLOSE
from brimful.errors import CommandFailed, UsageError
from brimful.measure import host
from brimful.show.run_sections import warnings_of
from brimful.values import Failure, Outcome, Place, Verdict
from brimful.verbs.predict import predict
from brimful.verbs.tune import tune
from brimful.watcher import Watcher
from tests.brimful.verbs.world import GIB, MIB, Ragged, Uneven, World, reporting, work

SCRIPT = Place("script", "/work/train.py", 6, 13, 16, "batch_size = 16", "data.py:51")
LOADER = Place(
    "loader", "/work/data.py", 51, 0, 16, "return DataLoader(", "data.py:51", ["/work/data.py:51"]
)
SCRIPT_OF_5 = replace(SCRIPT, number=5)
COMMAND = ("my-train", "--epochs", "3")


def world(**more) -> World:
    return World(**{"places": (SCRIPT, LOADER), **more})


def kinds(seen: World) -> list[str | None]:
    return [
        next((p.kind for p in trial.command.places.values()), trial.find_places)
        for trial in seen.launched
    ]


def test_a_prediction_is_of_the_scripts_own_number_and_the_same_as_with_a_flag():
    prediction, flagged = world(), World()
    answer = work(prediction, predict, COMMAND, gpu="a100-40gb").prediction
    same = work(flagged, predict, ("my-train", "--batch-size", "16"), gpu="a100-40gb").prediction
    assert (answer.batch_size, answer.peak, answer.largest_batch_size) == (
        16,
        same.peak,
        same.largest_batch_size,
    )
    assert [trial.settings.get("batch_size") for trial in prediction.launched] == [
        None,
        5,
        10_000,
    ], "its own number is traced once"
    assert kinds(prediction)[0] == "find" or prediction.launched[0].find_places == "script"
    assert set(kinds(prediction)[1:]) == {"script"}
    (note,) = [result for result in answer.warnings if result.code == "batch-size-place"]
    assert "set where train.py:6 has 16 (`batch_size = 16`)" in note.problem


def test_sizes_beyond_the_data_set_that_found_the_place_are_read_as_what_the_loader_gave():
    asked = {"gpu": "l4,rtx3080-20gb,t4", "settings": {"batch_size": 5}}
    placed = Uneven(places=(SCRIPT_OF_5,), own=5, dataset=7)
    answer = work(placed, predict, COMMAND, **asked).prediction
    assert placed.launched[1].settings["batch_size"] == 12, "of the 7 samples that there are"
    flagged = ("my-train", "--batch-size", "5")
    same = work(Uneven(own=5, dataset=7), predict, flagged, **asked).prediction
    assert [line.peak_bytes for line in answer.which] == [line.peak_bytes for line in same.which]


def test_a_step_of_a_fixed_total_is_drawn_with_its_own_number_of_batches_with_and_without_a_flag():
    class Summing(Uneven):
        def batches(self, size):
            return max(1, -(-200 // size))

    def drawn(world: World, command):
        asked = {"gpu": "a100-80gb", "budget": "8GiB"}
        what_if = work(world, predict, command, **asked).prediction.what_if
        drawn = [trial for trial in world.launched if trial.as_drawn]
        steps = [trial.ends.steps for trial in drawn if trial.settings.get("batch_size") == 1000]
        return [remedy.code for remedy in what_if.instead], steps

    placed = drawn(Summing(places=(replace(SCRIPT, number=1000),), own=1000), COMMAND)
    assert placed == drawn(Summing(), ("my-train", "--batch-size", "1000"))
    assert placed == (["rounded-sizes"], [23])


def test_micro_batches_that_would_help_are_set_in_the_place_that_was_found():
    there = Ragged(places=(SCRIPT,), own=60, dataset=None)
    answer = work(there, predict, COMMAND, gpu_memory="8.5GiB").prediction
    assert any("a trial at batch size" in remedy.basis for remedy in answer.what_if.remedies)
    last = there.launched[-1]
    assert last.settings["batch_size"] < 60 and last.command.places == {"batch_size": SCRIPT}


def test_where_an_epoch_at_the_scripts_own_size_does_not_fit_no_larger_one_than_follows_is_tried():
    place = replace(SCRIPT, number=400)
    placed, flagged = Uneven(places=(place,), own=400), Uneven()
    asked = {"gpu": "a100-80gb", "budget": "4GiB"}
    answer = work(placed, predict, COMMAND, **asked).prediction
    same = work(flagged, predict, ("my-train", "--batch-size", "400"), **asked).prediction
    assert answer.limited_by == same.limited_by == "budget"
    assert answer.verdict == same.verdict == Verdict.DOES_NOT_FIT
    assert answer.largest_batch_size == pytest.approx(same.largest_batch_size, rel=2 * CLOSE)
    tried = [trial.settings.get("batch_size", 400) for trial in placed.launched]
    assert tried[:3] == [400, 5, 400] and placed.launched[2].as_drawn
    assert max(tried[3:]) <= (1 + CLOSE) * answer.largest_batch_size


@pytest.mark.parametrize(
    ("there", "given", "size"),
    [
        (world(), {"batch_size": 64}, 64),
        # the literal is of all ranks
        (
            world(
                places=(replace(SCRIPT, number=64, text="batch_size = 64"), LOADER),
                width_follows=True,
            ),
            {},
            16,
        ),
    ],
    ids=["as it is given", "the loader's own number"],
)
def test_the_size_predicted_is_the_one_given_else_the_number_that_is_set(there, given, size):
    answer = work(there, predict, COMMAND, gpu="a100-40gb", settings=given).prediction
    assert answer.batch_size == size


def test_a_number_that_the_model_follows_as_well_is_set_at_the_loader():
    result = world(width_follows=True)
    answer = work(result, predict, COMMAND, gpu="a100-40gb").prediction
    assert answer is not None and kinds(result)[1:4] == ["script", "loader", "loader"]
    (note,) = [trial for trial in answer.warnings if trial.code == "batch-size-place"]
    assert "set where data.py:51 makes the training DataLoader with 16" in note.problem
    assert "the model follows it as well (10 parameters with 16, 5 with 5)" in note.explanation


LIMITED = replace(SCRIPT, limit=32, limited_at="train.py:6 (`batch_size = min(asked, 16)`)")


@pytest.mark.parametrize("asked", [None, 8, 64])
def test_a_number_that_the_script_limits_is_set_at_the_loader_whatever_is_asked(asked):
    result = world(places=(LIMITED, LOADER))
    given = {} if asked is None else {"batch_size": asked}
    record = work(result, predict, COMMAND, gpu="a100-40gb", settings=given)
    answer = record.prediction
    assert answer is not None and set(kinds(result)[1:]) == {"loader"}
    (note,) = [w for w in answer.warnings if w.code == "batch-size-past-a-limit"]
    assert note.problem.startswith(f"{LIMITED.limited_at} limits the batch size")
    assert "set where data.py:51 makes the training DataLoader with 16" in note.explanation
    assert note in warnings_of(record)[0], "said before the numbers"
    named = world(places=(LIMITED, LOADER))
    work(named, predict, COMMAND, gpu="a100-40gb", batch_size_from="script")
    assert set(kinds(named)[1:]) == {"script"}, "as the user wants it"


def test_a_size_that_is_asked_for_is_the_one_by_which_the_place_is_found():
    def capped(trial):
        asked = int(trial.settings.get("batch_size", 16))
        at_loader = any(place.kind == "loader" for place in trial.command.places.values())
        return asked if at_loader else min(asked, 64)

    result = world()
    result.batch = capped  # the script makes no batch larger than 64 of the number in its text
    launch = result.launch

    def launched(trial, *rest, **more):
        shown = launch(trial, *rest, **more)
        report = shown.reports[0]
        loaders = [replace(report.loaders[0], batch_size=capped(trial))]
        return replace(shown, reports=(replace(report, loaders=loaders),))

    result.launch = launched
    answer = work(
        result, predict, COMMAND, gpu="a100-40gb", settings={"batch_size": 128}
    ).prediction
    assert answer.batch_size == 128 and answer.in_force is None
    assert answer.next_command.line.startswith("brimful tune --set batch_size=128")


def test_a_script_that_takes_no_marked_numbers_is_tried_again_without():
    result = world(
        places=(LOADER,),
        outcome_of=lambda trial, size: Outcome.CRASHED if trial.find_places == "script" else None,
    )
    answer = work(result, predict, COMMAND, gpu="a100-40gb").prediction
    assert answer is not None and answer.batch_size == 16
    assert [trial.find_places for trial in result.launched[:3]] == ["script", "loader", None]


@pytest.mark.parametrize(("wants", "kind"), [("script", "script"), ("loader", "loader")])
def test_doubts_are_settled_by_an_option(wants, kind):
    result = world()
    work(result, predict, COMMAND, gpu="a100-40gb", batch_size_from=wants)
    assert set(kinds(result)[1:]) == {kind}
    flagged = world()
    work(
        flagged, predict, ("my-train", "--batch-size", "16"), gpu="a100-40gb", batch_size_from=wants
    )
    assert set(kinds(flagged)[1:]) == {kind}, "over a flag as well"


@pytest.mark.parametrize("wants", ["none", "flag"])
def test_a_script_can_be_left_as_it_is(wants):
    result = world()
    answer = work(result, predict, COMMAND, gpu="a100-40gb", batch_size_from=wants).prediction
    assert answer is not None and answer.batch_size is None and len(result.launched) == 1
    with pytest.raises(UsageError, match=r"has no \{batch_size\}"):
        work(world(), tune, COMMAND, device="cpu", batch_size_from=wants)


def test_what_is_asked_and_not_there_is_an_error():
    with pytest.raises(UsageError, match="comes from no integer in the script's text"):
        work(world(places=(LOADER,)), predict, COMMAND, gpu="a100-40gb", batch_size_from="script")


def test_a_plan_remembers_where_the_size_is_set():
    result = world(fixed=GIB, linear=8 * MIB)
    plan = work(result, tune, COMMAND, device="cpu").plan
    assert plan is not None and plan.places == {"batch_size": SCRIPT}
    assert plan.command_line == "brimful run -- my-train --epochs 3"
    row = next(row for row in plan.settings if row.name == "batch_size")
    assert row.requested == 16 and row.effective != 16
    assert set(kinds(result)[1:]) == {"script"}


def test_workers_are_set_beside_a_batch_size_where_neither_has_a_flag(monkeypatch):
    monkeypatch.setattr(host, "cores", lambda: 4)
    at = Place(
        "loader",
        "/work/data.py",
        51,
        0,
        0,
        "return DataLoader(",
        "data.py:51",
        ["/work/data.py:51"],
    )
    result = world(overhead_s=0.3, read_s=0.02, workers_place=at)
    plan = work(result, tune, COMMAND, device="cpu", budget="1GiB").plan
    assert plan is not None and plan.places == {"batch_size": SCRIPT, "num_workers": at}
    assert plan.command_line == "brimful run -- my-train --epochs 3"


SCALER = Failure(
    "crashed",
    "TypeError",
    "fill_value must be Number, not str",
    "",
    "train.py:19",
    "setup",
    0,
    False,
    raised_by="script",
)


def failing(there: World) -> World:
    """The same world, whose script fails before its first step."""
    return reporting(
        lambda result: replace(result, outcome=Outcome.CRASHED, failure=SCALER, exit_code=1),
        there,
        steps=0,
    )


@pytest.mark.parametrize("wants", ["auto", "loader"])
def test_a_script_that_fails_the_same_way_twice_before_its_first_step_is_not_tried_again(wants):
    result = failing(world())
    with pytest.raises(CommandFailed, match=r"TypeError: fill_value .* str \(train.py:19\)"):
        work(result, predict, COMMAND, gpu="a100-40gb", batch_size_from=wants)
    assert len(result.launched) == 2


def test_a_small_size_that_was_asked_for_is_not_tried_where_two_others_failed_alike():
    result = failing(World())
    with pytest.raises(CommandFailed, match="TypeError"):
        work(result, predict, ("my-train", "--batch-size", "3"), gpu="a100-40gb")
    assert [trial.settings["batch_size"] for trial in result.launched] == [5, 8]


def test_other_places_of_the_number_are_a_detail_of_the_record(monkeypatch):
    said = []
    monkeypatch.setattr(Watcher, "message", lambda self, text: said.append(text))
    places = (replace(SCRIPT, others=["model.py:31"]), LOADER)
    answer = work(world(places=places), predict, COMMAND, gpu="a100-40gb").prediction
    (note,) = [result for result in answer.warnings if result.code == "batch-size-place"]
    assert "16 also stands at model.py:31" in note.explanation
    (line,) = [text for text in said if "set where train.py:6 has 16" in text]
    assert line.endswith(f"hat the script computes from it follows. {note.suggestion}.")
