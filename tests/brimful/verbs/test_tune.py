"""`tune` in worlds where the truth is known: what it names was run, obeys every limit, and stands
beside what was asked.
"""

import dataclasses
import re
import time
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brimful import tune
from brimful.errors import CommandFailed, DoesNotFit, TimeIsUp, TrialFailed, UsageError
from brimful.measure import accelerators, host
from brimful.measure.accelerators import Accelerator
from brimful.record import read_record
from brimful.show.headline import headline
from brimful.trials import session as session_module
from brimful.units import format_bytes
from brimful.values import Estimate, Outcome, Place, Record, Source
from tests.brimful.verbs.world import (
    COMMAND,
    GIB,
    MIB,
    WORLDS,
    Uneven,
    World,
    chosen,
    failing_above,
    reporting,
    work,
)

SLOW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MEMORY = (Outcome.OUT_OF_DEVICE_MEMORY, Outcome.OUT_OF_HOST_MEMORY)


def check(world: World, record: Record, budget: int, most: int | None) -> None:
    """What it names was run or is called predicted, obeys every limit, and stands beside what was
    asked, with the reason.
    """
    plan, size = record.plan, chosen(record)
    assert [
        s
        for s in record.trials
        if s.trial.settings.get("batch_size") == size and s.outcome is Outcome.COMPLETED
    ], "what was named was never run to its end"
    assert plan.verified or all(row.source is Source.PREDICTED for row in plan.settings)
    assert most is None or size <= most
    assert world.dataset is None or size <= world.dataset
    assert world.peak(size) <= budget, "more memory than was allowed"
    assert str(size) in plan.command_line.split()
    assert plan.out_of_memory_trials == sum(s.outcome in MEMORY for s in record.trials)
    assert plan.trials == len(record.trials) == len(world.launched)
    taken = min(n for n in (world.own, world.dataset, world.cap) if n is not None)
    # the script's own, if it is seen to run
    default = None if most or world.peak(taken) > budget else world.own
    own = record.opened.command.given.get("batch_size", default)
    assert {row.name: row.requested for row in plan.settings}["batch_size"] == own
    assert all(row.why for row in plan.settings)


@SLOW
@example(
    World(fixed=109051905, linear=32505856, dataset=1, overhead_s=0.001, sample_s=0.0001),
    "600MiB",
    None,
    False,
)
@given(
    WORLDS,
    st.sampled_from(["600MiB", "1GiB"]),
    st.one_of(st.none(), st.integers(1, 500)),
    st.booleans(),
)
def test_on_a_cpu_what_is_named_was_run_and_obeys_every_limit(world, budget, most, asks):
    argv = ("my-train", "--batch-size", "24") if asks else COMMAND
    bytes_ = {"600MiB": 600 * MIB, "1GiB": GIB}[budget]
    try:
        record = work(world, tune, argv, most, budget, device="cpu")
    except DoesNotFit:
        assert world.peak(1) > bytes_
        return
    check(world, record, bytes_, most)
    largest = max(trial.settings.get("batch_size", 0) for trial in world.launched)
    assert most is None or largest <= most, "a larger batch size than the maximum was tried"


@pytest.mark.parametrize(
    "outcome",
    [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.KILLED, Outcome.PROBE_NOT_LOADED, Outcome.NO_STEP],
)
def test_only_memory_makes_the_search_go_smaller(tmp_path, outcome):
    world = World(outcome_of=lambda trial, size: outcome)
    with pytest.raises(CommandFailed):
        work(
            world,
            tune,
            ("my-train", "--batch-size", "24"),
            device="cpu",
            budget="1GiB",
            home=tmp_path,
        )
    assert len(world.launched) == 1, "a script that fails is not tried at other sizes"
    record = read_record("latest", tmp_path)
    assert record.closed.exit_code == 5 and [result.outcome for result in record.trials] == [
        outcome
    ], "and it is in the record"


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
@pytest.mark.parametrize(
    ("device", "why"), [("cpu", "used no accelerator"), ("cuda:0", "no peak of device memory")]
)
def test_a_peak_that_nobody_could_read_is_not_called_out_of_memory(device, why):
    with pytest.raises(TrialFailed, match=why):
        work(reporting(lambda result: dataclasses.replace(result, peak=None), device=device), tune)


@pytest.mark.usefixtures("real_card")
@pytest.mark.parametrize("objective", ["throughput", "largest"])
def test_on_a_real_card_what_is_named_has_run_with_uneven_batches_of_its_own_order(objective):
    world = Uneven(fixed=GIB, linear=MIB, device_bytes=8 * GIB, rises=1.3, overhead_s=30.0)
    record = work(world, tune, objective=objective, budget="7GiB")
    plan, size = record.plan, chosen(record)
    long = [trial for trial in world.launched if trial.ends.settles_after]
    assert all(trial.as_drawn and trial.ends.steps == trial.ends.settles_after for trial in long)
    *too_large, last = [trial.settings["batch_size"] for trial in long]
    needed = 1.3 * (GIB + 60 * last * MIB)
    assert too_large and last == size and needed <= 7 * GIB < needed * too_large[-1] / last
    assert plan.peak_bytes.value == int(needed) and plan.verified
    (row,) = [row for row in plan.settings if row.name == "batch_size"]
    batches = len(Uneven().lengths) + 2
    assert row.why.endswith(
        f"verified with {batches} batches of its own order: {format_bytes(needed)} reserved"
    )
    fits = {tried.batch_size: tried.fits for tried in plan.sizes}
    assert fits[size] and not any(fits[tried] for tried in too_large)


@pytest.mark.usefixtures("real_card")
@pytest.mark.parametrize(
    ("world", "where"),
    [
        (Uneven(overhead_s=1.0), {"device": "cpu", "budget": "4GiB"}),
        (World(fixed=GIB, linear=100 * MIB, device_bytes=8 * GIB), {}),
    ],
    ids=["uneven batches on a CPU, which reserves no memory", "batches of one shape on a card"],
)
def test_without_uneven_batches_on_a_real_card_no_trial_more_is_needed(world, where):
    assert "of its own order" not in work(world, tune, **where).plan.settings[0].why
    assert not any(trial.ends.settles_after for trial in world.launched)


ON_CPU = {"device": "cpu", "budget": "4GiB"}


@pytest.mark.parametrize(
    ("world", "where", "sizes", "limit", "why"),
    [
        (
            failing_above(40, overhead_s=0.3),
            ON_CPU | {"argv": ("my-train", "--batch-size", "8")},
            range(8, 41),
            "",
            "",
        ),
        (
            failing_above(40),
            ON_CPU | {"objective": "largest"},
            range(1, 41),
            "the script itself, which fails at batch size ",
            ".*limited by the script itself",
        ),
    ],
)
def test_a_crash_at_large_sizes_alone_leaves_a_plan_below_it(world, where, sizes, limit, why):
    record = work(world, tune, **where)
    row = settings_of(record)["batch_size"]
    assert row.effective in sizes and re.match(why, row.why)
    assert (record.memory.limited_by or "").startswith(limit)


def test_a_script_that_ignores_the_batch_size_has_none_named():
    with pytest.raises(UsageError, match="ignores the batch size"):
        work(World(ignores=True), tune, ASKED, device="cpu", budget="1GiB")


def test_a_command_without_a_place_for_the_batch_size_shows_what_to_add():
    world = World()
    with pytest.raises(UsageError) as caught:
        work(world, tune, ("my-train", "--epochs", "3"), device="cpu")
    assert "{batch_size}" in caught.value.suggestion
    assert [trial.find_places for trial in world.launched] == ["script"], (
        "a trial looked for a number in the script"
    )


@pytest.mark.parametrize("objective", ["throughput", "largest"])
def test_no_batch_size_beyond_the_data_set_is_tried_once_its_length_is_known(objective):
    world = World(dataset=30, overhead_s=0.3)
    assert chosen(work(world, tune, device="cpu", budget="1GiB", objective=objective)) <= 30
    assert all(trial.settings["batch_size"] <= 30 for trial in world.launched[1:])


# --- what each size means, and the host ---


def test_a_row_for_each_size_says_what_was_measured_and_what_is_predicted():
    record = work(
        World(overhead_s=0.3), tune, ("my-train", "--batch-size", "24"), device="cpu", budget="1GiB"
    )
    rows = {row.batch_size: row for row in record.plan.sizes}
    assert rows.keys() == {trial.trial.settings["batch_size"] for trial in record.trials}
    row = rows[chosen(record)]
    assert row.fits and row.effective_batch == Estimate(chosen(record), Source.MEASURED)
    assert row.epoch_s.source is Source.PREDICTED and row.epoch_s.value > 0
    assert row.updates_per_epoch.value == -(-10_000 // chosen(record))


ASKED = ("my-train", "--batch-size", "24")
WITH_WORKERS = (
    *COMMAND,
    "--num-workers",
    "{num_workers}",
    "--eval-batch-size",
    "{eval_batch_size}",
)


def settings_of(record: Record) -> dict:
    return {row.name: row for row in record.plan.settings}


@pytest.fixture
def small_host(monkeypatch):
    """A cgroup that leaves 1 GiB."""
    monkeypatch.setattr(host, "free_bytes", lambda: GIB)
    monkeypatch.setattr(host, "cores", lambda: 32)
    monkeypatch.setattr(host, "machine", lambda: dataclasses.replace(real_machine, cores=32))


real_machine = host.machine()


@pytest.mark.usefixtures("small_host")
def test_workers_are_tried_as_far_as_the_host_has_room_and_the_evaluation_batch_follows():
    record = work(World(overhead_s=0.3), tune, WITH_WORKERS, device="cpu", budget="1GiB")
    assert {trial.trial.settings["num_workers"] for trial in record.trials} <= {0, 1, 2}, (
        "of 256 MiB each, in 60 % of 1 GiB"
    )
    assert all(
        trial.trial.settings["eval_batch_size"] == 3 * trial.trial.settings["batch_size"]
        for trial in record.trials[1:]
    )
    assert settings_of(record)["eval_batch_size"].effective == 3 * chosen(record)


@pytest.mark.usefixtures("small_host")
def test_a_number_of_workers_that_was_given_is_kept_with_a_warning_or_refused():
    given = {"device": "cpu", "budget": "1GiB", "settings": {"num_workers": 16}}
    record = work(World(overhead_s=0.3), tune, WITH_WORKERS, **given)
    row = settings_of(record)["num_workers"]
    assert row.effective == 16 and "too much" in row.why
    assert any(
        trial.code == "host-memory" and "16" in trial.problem for trial in record.plan.warnings
    )


AT = Place(
    "loader", "/work/data.py", 51, 0, 0, "return DataLoader(", "data.py:51", ["/work/data.py:51"]
)
LOADS = {"overhead_s": 0.3, "read_s": 0.02, "workers_place": AT}
FLAGGED = ("my-train", "--batch-size", "24", "--workers", "0")


@pytest.mark.usefixtures("small_host")
def test_where_the_training_waits_for_data_workers_are_set_unasked_and_the_plan_says_where():
    record = work(World(**LOADS), tune, ASKED, device="cpu", budget="1GiB")
    row = settings_of(record)["num_workers"]
    assert row.requested == 0 and row.effective > 0 and record.plan.places == {"num_workers": AT}
    assert record.plan.command_line == f"brimful run -- my-train --batch-size {chosen(record)}"
    (said,) = [trial for trial in record.plan.warnings if trial.code == "num-workers-place"]
    assert (
        f"set to {row.effective} where data.py:51 makes the training DataLoader with 0"
        in said.problem
    )
    assert "--set num_workers=0" in said.suggestion


@pytest.mark.usefixtures("small_host")
@pytest.mark.parametrize(
    "world", [World(**LOADS | {"read_s": 0.0}), World(**LOADS | {"workers_place": None})]
)
def test_workers_stay_as_they_are_where_nothing_waits_or_they_cannot_be_set(world):
    record = work(world, tune, ASKED, device="cpu", budget="1GiB")
    assert record.plan.places == {} and record.plan.command_line.startswith("my-train ")
    assert {trial.settings.get("num_workers", 0) for trial in world.launched} == {0}


@pytest.mark.usefixtures("small_host")
@pytest.mark.parametrize(
    ("more", "effective", "is_placed"),
    [
        ({"settings": {"num_workers": 0}}, 0, False),
        ({"settings": {"num_workers": 2}}, 2, True),
        ({"batch_size_from": "flag"}, None, False),
    ],
)
def test_the_user_can_say_how_many_workers_or_that_brimful_sets_nothing_in_a_script(
    more, effective, is_placed
):
    record = work(World(**LOADS), tune, ASKED, device="cpu", budget="1GiB", **more)
    row = settings_of(record).get("num_workers")
    assert (row and row.effective, bool(record.plan.places)) == (effective, is_placed)


@pytest.mark.usefixtures("small_host")
def test_a_flag_for_workers_is_what_is_tuned_where_the_loader_has_its_number():
    record = work(World(**LOADS), tune, FLAGGED, device="cpu", budget="1GiB")
    row = settings_of(record)["num_workers"]
    assert row.requested == 0 and row.effective > 0 and record.plan.places == {}
    assert record.plan.command_line.split()[-2:] == ["--workers", str(row.effective)]
    other = World(**LOADS | {"workers_place": dataclasses.replace(AT, number=3)})
    record = work(other, tune, FLAGGED, device="cpu", budget="1GiB")
    assert settings_of(record)["num_workers"].effective == 0, (
        "the loader has another number than the flag"
    )


# --- the user's own settings, and searches that do not come to their end ---


def test_what_stands_open_is_at_first_what_the_script_takes_by_itself():
    world = World(overhead_s=0.3, own=48, own_workers=2)
    record = work(
        world, tune, WITH_WORKERS, device="cpu", budget="1GiB", settings={"eval_batch_size": 4}
    )
    assert world.launched[0].command.argv == ("my-train", "--eval-batch-size", "{eval_batch_size}")
    rows = settings_of(record)
    assert (rows["batch_size"].requested, rows["num_workers"].requested) == (48, 2)
    assert (
        rows["num_workers"].effective == 2 and "the script's own default" in rows["num_workers"].why
    )
    assert {trial.settings["num_workers"] for trial in world.launched[1:]} == {2}, "and not 0"
    assert record.plan.baseline_samples_per_s is not None


def test_a_script_that_divides_its_batch_size_or_needs_it_has_no_default_that_brimful_knows():
    def halved(result):
        reports = [
            dataclasses.replace(
                one,
                loaders=[
                    dataclasses.replace(loader, batch_size=loader.batch_size // 2)
                    for loader in one.loaders
                ],
            )
            for one in result.reports
        ]
        return dataclasses.replace(result, reports=tuple(reports))

    record = work(reporting(halved, World(overhead_s=0.3)), tune, device="cpu", budget="1GiB")
    assert (
        settings_of(record)["batch_size"].requested is None
        and record.plan.baseline_samples_per_s is None
    )
    needs = World(
        outcome_of=lambda trial, size: None if "batch_size" in trial.settings else Outcome.CRASHED
    )
    record = work(needs, tune, device="cpu", budget="1GiB")
    assert (
        settings_of(record)["batch_size"].requested is None
        and record.trials[0].outcome is Outcome.CRASHED
    )


def interrupted_at(number: int, outcome: Outcome = Outcome.INTERRUPTED) -> World:
    world = World(overhead_s=0.3)
    world.outcome_of = lambda trial, size: outcome if len(world.launched) == number else None
    return world


@pytest.mark.parametrize("number", [6, 7, 8])
def test_an_interrupted_search_leaves_the_best_so_far_as_a_plan_that_says_so(number):
    record = work(interrupted_at(number), tune, ASKED, device="cpu", budget="1GiB")
    plan = record.plan
    assert plan.partial == f"interrupted after {number} trials" and record.closed.exit_code == 130
    assert plan.warnings[0].code == "partial-plan"
    completed = [trial for trial in record.trials if trial.outcome is Outcome.COMPLETED]
    assert any(trial.trial.settings["batch_size"] == chosen(record) for trial in completed)
    assert headline(record).tone == "note" and headline(record).sentence.startswith(
        "Partial (interrupted after"
    )


@pytest.fixture
def minutes(monkeypatch):
    """A clock by which each trial takes a minute."""
    world = World(overhead_s=0.3)
    clock = SimpleNamespace(monotonic=lambda: 60.0 * len(world.launched), time=time.time)
    monkeypatch.setattr(session_module, "time", clock)
    return world


def test_when_the_time_of_the_whole_search_is_up_the_best_so_far_is_the_plan(minutes):
    record = work(minutes, tune, ASKED, device="cpu", budget="1GiB", time_limit_s=390.0)
    assert (
        record.plan.partial == "the time limit was up after 7 trials"
        and record.closed.exit_code == 0
    )
    assert [trial.time_limit_s for trial in minutes.launched] == [390, 330, 270, 210, 150, 90, 30]


def test_a_time_limit_that_leaves_no_time_for_a_plan_says_so(minutes):
    with pytest.raises(TimeIsUp, match="before any settings could be named"):
        work(minutes, tune, ASKED, device="cpu", budget="1GiB", time_limit_s=130.0)


@pytest.mark.usefixtures("real_card")
@pytest.mark.parametrize("trials", [1, 3, 6])
def test_on_a_real_card_whatever_the_time_limit_the_fastest_that_ran_is_the_plan(minutes, trials):
    minutes.fixed, minutes.linear, minutes.device_bytes = GIB, 10 * MIB, 8 * GIB
    record = work(minutes, tune, ASKED, budget="90%", time_limit_s=60.0 * trials - 1)
    sizes = [trial.settings["batch_size"] for trial in minutes.launched]
    assert record.plan.partial == f"the time limit was up after {trials} trials".replace(
        "1 trials", "1 trial"
    )
    # the smallest within the tolerance of the fastest
    assert chosen(record) in sizes and (chosen(record) > 0.9 * max(sizes) or trials == 1)
    assert record.plan.verified and record.plan.samples_per_s.source is Source.MEASURED
    assert record.closed.exit_code == 0


@pytest.mark.usefixtures("real_card")
def test_on_a_real_card_a_time_limit_before_the_first_trials_end_leaves_nothing_to_name(minutes):
    minutes.outcome_of = lambda trial, size: Outcome.TIMED_OUT
    with pytest.raises(TimeIsUp, match="before any settings could be named"):
        work(minutes, tune, ASKED, budget="90%", time_limit_s=59.0)


def test_a_whole_search_is_not_partial():
    record = work(World(overhead_s=0.3), tune, ASKED, device="cpu", budget="1GiB")
    assert record.plan.partial is None and record.plan.verified
    assert record.plan.gain.value > 1.03 and record.plan.gain.low > 1
    assert "faster than your settings" in headline(record).sentence


def test_where_nothing_is_faster_the_users_own_settings_stay_and_the_headline_says_so():
    record = work(World(overhead_s=0.0), tune, ASKED, device="cpu", budget="1GiB")
    assert chosen(record) == 24 and record.plan.gain is None
    assert headline(record).sentence.startswith(
        "Your own settings stay, batch size 24: nothing was clearly faster"
    )
