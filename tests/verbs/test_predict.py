"""`predict` in worlds where the truth is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import COMMAND, GIB, MIB, WORLDS, World, work

from brimful.errors import CommandFailed, DoesNotFit, UsageError
from brimful.show.headline import of_prediction
from brimful.show.text import limited_text
from brimful.values import Outcome
from brimful.verbs import predict
from brimful_inside.simulator.trace import Free, Malloc

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SLOW
@given(WORLDS, st.integers(1, 5000))
def test_a_verdict_and_the_largest_batch_size_obey_one_rule_of_fitting(world, asked):
    record = work(world, predict, ("my-train", "--batch-size", str(asked)), gpu_memory="4GiB")
    said = record.prediction
    assert said.batch_size == asked, "what was asked is what is answered"
    assert said.verdict == ("fits" if said.peak.device_interval_bytes[1] <= said.budget.bytes else "out_of_memory")
    effective = asked if world.dataset is None else min(asked, world.dataset)
    if said.verdict == "fits":
        assert world.peak(effective) <= said.budget.bytes
        assert said.largest_batch_size is not None
        assert said.largest_batch_size >= effective
    if said.largest_batch_size is not None:
        assert world.dataset is None or said.largest_batch_size <= world.dataset
        assert world.peak(said.largest_batch_size) <= said.budget.bytes
    if world.dataset is not None and asked > world.dataset:
        assert "batch-exceeds-dataset" in {warning.code for warning in said.warnings}


@SLOW
@given(WORLDS, st.one_of(st.none(), st.integers(1, 500)))
def test_an_open_batch_size_is_answered_with_the_largest_that_obeys_every_limit(world, most):
    try:
        said = work(world, predict, COMMAND, most, gpu_memory="4GiB").prediction
    except DoesNotFit:
        assert world.peak(1) + 600 * MIB > 0.8 * 4 * GIB, "one sample would have fitted"
        return
    assert said.verdict == "fits"
    assert said.batch_size == said.largest_batch_size
    assert most is None or said.largest_batch_size <= most
    assert world.dataset is None or said.largest_batch_size <= world.dataset
    assert said.limited_by in ("budget", "dataset", "max_batch_size")


def test_a_batch_size_that_does_not_fit_is_answered_with_how_much_it_would_take():
    said = work(World(linear=100 * MIB), predict, ("my-train", "--batch-size", "100"), gpu_memory="4GiB").prediction
    assert said.verdict == "out_of_memory"
    assert said.peak.device_bytes > 4 * GIB, "the peak on a card as large as needed"


def test_a_script_that_ignores_the_batch_size_is_answered_with_a_warning():
    said = work(World(ignores=True), predict, ("my-train", "--batch-size", "64"), gpu_memory="4GiB").prediction
    assert "ignores-batch-size" in {warning.code for warning in said.warnings}


def test_a_hidden_cap_is_not_taken_for_a_script_that_ignores_its_batch_size():
    said = work(World(cap=9), predict, ("my-train", "--batch-size", "64"), gpu_memory="4GiB").prediction
    assert "ignores-batch-size" not in {warning.code for warning in said.warnings}


@pytest.mark.parametrize(("asked", "warned"), [("64", True), ("{batch_size}", True), ("8", False)])
def test_a_hidden_cap_is_a_warning_to_those_who_ask_beyond_it(asked, warned):
    said = work(World(cap=9), predict, ("my-train", "--batch-size", asked), gpu_memory="4GiB").prediction
    caps = [warning for warning in said.warnings if warning.code == "hidden-cap"]
    assert bool(caps) is warned
    assert not caps or "gives batches of 9" in caps[0].problem


def test_a_command_without_a_place_for_the_batch_size_is_predicted_as_it_stands():
    world = World()
    said = work(world, predict, ("my-train", "--epochs", "3"), gpu_memory="4GiB").prediction
    assert (said.verdict, said.batch_size, said.largest_batch_size) == ("fits", None, None)
    assert "no-batch-size" in {warning.code for warning in said.warnings}
    assert len(world.launched) == 1


def test_a_size_that_crashes_when_it_is_the_one_asked_for_is_an_error_and_no_prediction():
    world = World(
        outcome_of=lambda trial, size: Outcome.CRASHED if size > 40 else None, linear=20 * MIB, kink_at=10, kink_bytes=MIB
    )
    with pytest.raises(CommandFailed):
        work(world, predict, ("my-train", "--batch-size", "2000"), gpu_memory="4GiB")


@pytest.mark.parametrize("asked", ["24", "{batch_size}"])
def test_a_host_that_is_out_of_memory_says_nothing_about_a_card(asked):
    world = World(outcome_of=lambda trial, size: Outcome.OUT_OF_HOST_MEMORY)
    with pytest.raises(DoesNotFit, match="ran out of host memory"):
        work(world, predict, ("my-train", "--batch-size", asked), gpu_memory="4GiB")
    assert len(world.launched) == 1


def test_without_a_card_there_is_nothing_to_predict_for():
    with pytest.raises(UsageError, match="no card"):
        work(World(), predict)


def test_a_script_that_takes_pairs_alone_is_searched_among_even_sizes():
    world = World(outcome_of=lambda trial, size: Outcome.CRASHED if size % 2 else None, linear=20 * MIB)
    record = work(world, predict, ("my-train", "--batch-size", "{batch_size}"), gpu_memory="4GiB")
    said = record.prediction
    assert said.largest_batch_size and said.largest_batch_size % 8 == 0 and said.exact
    assert not any(int(trial.settings["batch_size"]) % 2 for trial in world.launched[1:])
    largest = int(said.largest_batch_size)
    assert said.peak.device_interval_bytes[1] <= said.budget.bytes < said.peak.device_interval_bytes[1] + 2 * 8 * world.linear
    assert world.peak(largest) <= said.budget.bytes
    assert "multiples" in {note.code for note in record.notes}


def test_a_script_that_fails_at_every_small_size_raises_its_first_failure():
    world = World(outcome_of=lambda trial, size: Outcome.CRASHED)
    with pytest.raises(CommandFailed):
        work(world, predict, ("my-train", "--batch-size", "64"), gpu_memory="4GiB")
    assert [trial.settings["batch_size"] for trial in world.launched] == [5, 8]


@pytest.mark.parametrize("last", [40, 300])
def test_a_script_that_fails_by_itself_above_some_size_is_what_limits_the_answer_in_its_verdict_and_rows(last):
    world = World(linear=64 * 1024, outcome_of=lambda trial, size: Outcome.CRASHED if size > last else None)
    said = work(world, predict, COMMAND, gpu_memory="8GiB").prediction
    assert said.verdict == "fits" and 0.9 * last <= said.batch_size == said.largest_batch_size <= last
    ceiling = min(size for trial in world.launched if (size := int(trial.settings["batch_size"])) > last)
    assert said.limited_by.startswith(f"the script itself, which fails at batch size {ceiling:,}: ")
    assert f"it is the largest that ran, limited by the script itself, which fails at batch size {ceiling:,}" in (
        of_prediction(said).sentence
    )
    assert "the script itself" in limited_text(said.limited_by)


def test_a_size_asked_for_above_a_failure_of_the_script_is_run_and_not_promised_by_its_memory():
    world = World(linear=64 * 1024, outcome_of=lambda trial, size: Outcome.CRASHED if size > 300 else None)
    with pytest.raises(CommandFailed):
        work(world, predict, ("my-train", "--batch-size", "320"), gpu_memory="8GiB")


@pytest.mark.parametrize(("drops", "explanation"), [(True, "nothing trains"), (False, "would train with batches of 100")])
def test_a_batch_above_the_data_set_is_a_warning_with_what_the_loader_gives_then(drops, explanation):
    class Dropping(World):
        def launch(self, trial, folder, record_folder, heartbeat=None, scans=()):
            sample = super().launch(trial, folder, record_folder, heartbeat, scans)
            loaders = [replace(loader, drop_last=drops) for loader in sample.reports[0].loaders]
            return replace(sample, reports=(replace(sample.reports[0], loaders=loaders),))

    said = work(Dropping(dataset=100), predict, ("my-train", "--batch-size", "101"), gpu_memory="4GiB").prediction
    (warning,) = [warning for warning in said.warnings if warning.code == "batch-exceeds-dataset"]
    assert explanation in warning.explanation


def test_a_size_that_does_not_fit_below_one_that_does_is_explained():
    class Uneven(World):
        """From 30 to 39 samples a large temporary is made, and from 90 on another small one, so that no law is of all."""

        def rows(self, size):
            rows = super().rows(size)
            nbytes = 90 * MIB * size if 30 <= size < 40 else 512 if size >= 90 else 0
            return [*rows[:2], *([Malloc(50, nbytes, "aten.cat"), Free(50)] if nbytes else []), *rows[2:]]

    said = work(Uneven(linear=10 * MIB), predict, ("my-train", "--batch-size", "39"), 100, gpu_memory="4GiB").prediction
    assert (said.verdict, said.largest_batch_size) == ("out_of_memory", 100)
    assert "a-larger-one-fits" in {warning.code for warning in said.warnings}
    said = work(World(linear=10 * MIB), predict, ("my-train", "--batch-size", "390"), gpu_memory="4GiB").prediction
    assert said.verdict == "out_of_memory" and said.largest_batch_size < 390
    assert "a-larger-one-fits" not in {warning.code for warning in said.warnings}


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
