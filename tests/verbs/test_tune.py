"""`tune` in worlds where the truth is known: what it names was run, obeys every limit, and stands beside what was asked."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import COMMAND, GIB, MIB, WORLDS, World, chosen, work

from brimful import tune
from brimful.errors import BrimfulError, CommandFailed, DoesNotFit, TrialFailed, UsageError
from brimful.measure import accelerators
from brimful.measure.accelerators import Accelerator
from brimful.measure.gpus import custom_gpu
from brimful.values import Outcome, Plan, Record, Source

SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MEMORY = (Outcome.OUT_OF_DEVICE_MEMORY, Outcome.OUT_OF_HOST_MEMORY)


def check(world: World, record: Record, budget: int, most: int | None) -> None:
    """What it names was run or is called predicted, obeys every limit, and stands beside what was asked, with the reason."""
    plan, size = record.plan, chosen(record)
    assert isinstance(plan, Plan)
    runs = [s for s in record.trials if s.trial.settings["batch_size"] == size and s.outcome is Outcome.COMPLETED]
    assert runs, "what was named was never run to its end"
    if plan.verified:
        assert all(row.source is not None for row in plan.settings)
    else:
        assert all(row.source is Source.PREDICTED for row in plan.settings)
    assert most is None or size <= most
    assert world.dataset is None or size <= world.dataset
    assert world.peak(size) <= budget, "more memory than was allowed"
    assert str(size) in plan.command_line.split()
    assert plan.out_of_memory_trials == sum(s.outcome in MEMORY for s in record.trials)
    assert plan.trials == len(record.trials) == len(world.launched)
    assert {row.name: row.requested for row in plan.settings}["batch_size"] == record.opened.command.given.get("batch_size")
    assert all(row.why for row in plan.settings)


@SLOW
@given(WORLDS, st.sampled_from(["600MiB", "1GiB"]), st.one_of(st.none(), st.integers(1, 500)), st.booleans())
def test_on_a_cpu_what_is_named_was_run_and_obeys_every_limit(world, budget, most, asks):
    argv = ("my-train", "--batch-size", "24") if asks else COMMAND
    bytes_ = {"600MiB": 600 * MIB, "1GiB": GIB}[budget]
    try:
        record = work(world, tune, argv, most, budget, device="cpu")
    except DoesNotFit:
        assert world.peak(1) > bytes_
        return
    check(world, record, bytes_, most)
    largest = max(trial.settings["batch_size"] for trial in world.launched)
    assert most is None or largest <= most, "a larger batch size than the maximum was tried"


@SLOW
@given(WORLDS, st.sampled_from(["2GiB", "6GiB"]), st.one_of(st.none(), st.integers(1, 500)), st.booleans())
def test_on_an_imaginary_card_what_is_named_was_run_and_obeys_every_limit(world, memory, most, asks):
    argv = ("my-train", "--batch-size", "24") if asks else COMMAND
    try:
        record = work(world, tune, argv, most, None, gpu_memory=memory)
    except DoesNotFit:
        card = custom_gpu(memory)
        assert 1.1 * (world.peak(1) + card.context_bytes.high) > 0.9 * card.total_bytes.value, "one sample would have fitted"
        return
    check(world, record, record.opened.budget.bytes, most)
    assert record.plan.trials <= 7, "six traces, and one that confirms"


def test_these_checks_catch_a_plan_that_was_never_run():
    world = World(dataset=500)
    record = work(world, tune, budget="1GiB", device="cpu")
    size = chosen(record)
    lied = dataclasses.replace(record, trials=tuple(s for s in record.trials if s.trial.settings["batch_size"] != size))
    with pytest.raises(AssertionError, match="never run"):
        check(world, lied, GIB, None)
    with pytest.raises(AssertionError):
        check(world, record, world.peak(size) - 1, None)
    with pytest.raises(AssertionError):
        check(world, record, GIB, size - 1)


@pytest.mark.parametrize(
    "outcome", [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.KILLED, Outcome.PROBE_NOT_LOADED, Outcome.NO_STEP]
)
def test_only_memory_makes_the_search_go_smaller(outcome):
    world = World(outcome_of=lambda trial, size: outcome)
    with pytest.raises(CommandFailed):
        work(world, tune, ("my-train", "--batch-size", "24"), device="cpu", budget="1GiB")
    assert len(world.launched) == 1, "a script that fails is not tried at other sizes"


@pytest.fixture
def real_card(monkeypatch):
    card = Accelerator(0, "cuda", "A card", 8 * GIB, 8 * GIB)
    monkeypatch.setattr(accelerators, "found_by", lambda python: (card,))


@pytest.mark.usefixtures("real_card")
def test_on_a_real_card_its_free_memory_is_the_budget():
    world = World(fixed=GIB, linear=100 * MIB, device_bytes=8 * GIB, overhead_s=1.0)
    record = work(world, tune, device="auto", budget="90%")
    assert record.opened.device.label == "cuda:0" and chosen(record) >= 40
    check(world, record, int(0.9 * 8 * GIB), None)


@pytest.mark.usefixtures("real_card")
@pytest.mark.parametrize(("device", "why"), [("cpu", "used no accelerator"), ("cuda:0", "no peak of device memory")])
def test_a_peak_that_nobody_could_read_is_not_called_out_of_memory(device, why):
    class Blind(World):
        def _report(self, *args):
            return dataclasses.replace(super()._report(*args), device=device)

        def _sample(self, trial, size, folder, outcome, peak):
            return dataclasses.replace(super()._sample(trial, size, folder, outcome, peak), peak=None)

    with pytest.raises(TrialFailed, match=why):
        work(Blind(), tune)


def test_out_of_memory_does_make_it_go_smaller():
    world = World(linear=300 * MIB, outcome_of=lambda trial, size: None)
    record = work(world, tune, device="cpu", budget="1GiB")
    assert record.trials[0].outcome in MEMORY
    assert chosen(record) <= 3


def test_a_crash_at_large_sizes_alone_leaves_a_plan_below_it():
    world = World(outcome_of=lambda trial, size: Outcome.CRASHED if size > 40 else None, overhead_s=0.3)
    record = work(world, tune, ("my-train", "--batch-size", "8"), device="cpu", budget="4GiB")
    assert 8 <= chosen(record) <= 40


def test_a_script_that_ignores_the_batch_size_has_none_named():
    for where in ({"device": "cpu", "budget": "1GiB"}, {"gpu_memory": "4GiB"}):
        world = World(ignores=True)
        with pytest.raises(UsageError, match="ignores the batch size"):
            work(world, tune, ("my-train", "--batch-size", "24"), **where)


def test_a_data_set_smaller_than_the_batch_asked_for_is_the_limit_and_said():
    world = World(dataset=100, overhead_s=0.3)
    record = work(world, tune, ("my-train", "--batch-size", "512"), gpu_memory="8GiB")
    (row,) = [row for row in record.plan.settings if row.name == "batch_size"]
    assert (row.requested, row.effective) == (512, 100)
    assert "data set" in row.why


def test_a_command_without_a_place_for_the_batch_size_shows_what_to_add():
    world = World()
    with pytest.raises(UsageError) as caught:
        work(world, tune, ("my-train", "--epochs", "3"), device="cpu")
    assert "{batch_size}" in caught.value.suggestion
    assert not world.launched


def test_what_went_wrong_is_kept_in_the_record(tmp_path):
    from brimful.record import latest, read_record

    world = World(outcome_of=lambda trial, size: Outcome.TIMED_OUT)
    with pytest.raises(BrimfulError):
        work(world, tune, device="cpu", budget="1GiB", home=tmp_path)
    record = read_record(latest(tmp_path))
    assert record.closed.exit_code == 5
    assert [s.outcome for s in record.trials] == [Outcome.TIMED_OUT]


def test_a_crash_at_large_sizes_alone_leaves_a_plan_on_an_imaginary_card_too():
    world = World(outcome_of=lambda trial, size: Outcome.CRASHED if size > 40 else None)
    record = work(world, tune, gpu_memory="8GiB")
    assert 1 <= chosen(record) <= 40
    assert any(note.code == "script-error" for note in record.notes)


@pytest.mark.parametrize("objective", ["fastest", "largest"])
def test_no_batch_size_beyond_the_data_set_is_tried_once_its_length_is_known(objective):
    world = World(dataset=30, overhead_s=0.3)
    record = work(world, tune, device="cpu", budget="1GiB", objective=objective)
    assert chosen(record) <= 30
    assert all(trial.settings["batch_size"] <= 30 for trial in world.launched[1:])
