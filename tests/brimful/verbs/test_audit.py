"""`audit` on samples whose truth is known: what was asked beside what happens."""

import dataclasses

import pytest

from brimful import audit
from brimful.errors import TrialFailed, UsageError
from brimful.measure import host as machine
from brimful.show.headline import headline
from brimful.show.sections import effective_rows
from brimful.values import Outcome, Place, Source
from brimful_inside.wire import WorstBatch
from tests.brimful.verbs.world import World, reporting, work


def test_asked_and_effective_stand_side_by_side():
    report = work(World(cap=2), audit, ("my-train", "--batch-size", "64"), device="cpu").audit
    own, given = report.requested["batch_size"], report.effective.loader_batch_size
    assert (own, given) == (64, 2)
    assert [finding.code for finding in report.findings] == ["hidden-cap"]
    assert all(
        finding.problem and finding.explanation and finding.suggestion
        for finding in report.findings
    )


@pytest.mark.parametrize("gpu", [None, "a100-40gb"])
def test_a_size_is_set_where_the_script_without_a_flag_has_its_number(gpu):
    place = Place("script", "/work/train.py", 6, 13, 16, "batch_size = 16", "data.py:51")
    world, asked = World(places=(place,)), {"settings": {"batch_size": 40}, "gpu": gpu}
    report = work(world, audit, ("my-train",), **asked).audit
    same = work(World(), audit, ("my-train", "--batch-size", "16"), **asked).audit
    assert (report.requested, report.effective) == (same.requested, same.effective)
    assert report.requested["batch_size"] == report.effective.loader_batch_size == 40
    assert world.launched[-1].command.places == {"batch_size": place}
    with pytest.raises(UsageError, match=r"no \{batch_size\}"):
        work(World(), audit, ("my-train",), **asked)


def test_beside_the_audit_stands_what_this_machine_has_room_for_where_it_is_asked(monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda: 13 << 30)
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(machine, "shm_free_bytes", lambda: None)
    words = ("my-train", "--batch-size", "64", "--workers", "6")
    record = work(World(own_workers=6), audit, words, device="cpu", host_policy=True)
    assert record.audit.host.summary == "4 of the 6 workers asked for fit here: there are 4 cores."
    assert headline(record).sentence == record.audit.host.summary
    assert record.audit.host.settings[0].effective == 6
    assert work(World(own_workers=6), audit, words, device="cpu").audit.host is None


def test_on_an_imaginary_card_times_are_absent_and_peaks_are_predicted():
    report = work(World(), audit, ("my-train", "--batch-size", "50"), gpu_memory="4GiB").audit
    assert (report.loading_share, report.step_s, report.peak_source) == (
        None,
        None,
        Source.PREDICTED,
    )
    assert (
        work(World(), audit, ("my-train", "--batch-size", "32"), device="cpu").audit.peak_source
        is Source.MEASURED
    )


def test_an_audit_that_runs_out_of_time_says_what_its_steps_showed():
    world = reporting(
        lambda result: dataclasses.replace(result, outcome=Outcome.TIMED_OUT), World(cap=2)
    )
    record = work(world, audit, ("my-train", "--batch-size", "64"), device="cpu")
    assert [finding.code for finding in record.audit.findings] == ["hidden-cap"]
    [note] = [entry for entry in record.notes if entry.code == "partial"]
    assert note.problem == "brimful ended the trial after its time limit of 10 min 00 s"


def test_an_audit_needs_the_values_in_use():
    with pytest.raises(UsageError, match="nothing sets it"):
        work(World(), audit, device="cpu")
    with pytest.raises(UsageError, match=r"\{accumulation\}"):
        work(
            World(),
            audit,
            ("my-train", "--batch-size", "32", "--accumulation", "{accumulation}"),
            device="cpu",
        )
    assert (
        work(
            World(), audit, device="cpu", settings={"batch_size": 50}
        ).audit.effective.loader_batch_size
        == 50
    )


@pytest.mark.parametrize(
    ("samples", "mean", "counted"),
    [(64, 16.0, 16), (None, None, 64)],
    ids=["of those it gave", "all alike"],
)
def test_an_audit_says_where_one_batch_of_a_batch_sampler_stands_for_others(samples, mean, counted):
    what = "every batch is the largest of those it gave"
    worst = WorstBatch(100, 100, True, what, samples=samples, mean_samples=mean)
    words = ("my-train", "--batch-size", "64")
    report = work(reporting(worst_batch=worst), audit, words, gpu_memory="4GiB").audit
    assert (what in report.notes) is (mean is not None)
    of_loader, of_step = report.effective.loader_batch_size, report.effective.samples_per_step
    assert of_loader == of_step == counted, "those of a mean batch"
    is_scaled = report.effective.samples_source is Source.ESTIMATE
    assert is_scaled is (mean is not None)


def test_notes_of_the_trial_are_in_the_audit():
    world = reporting(
        lambda result: dataclasses.replace(result, notes=("the script used no accelerator",))
    )
    report = work(world, audit, ("my-train", "--batch-size", "32"), device="cpu").audit
    assert report.notes == ("the script used no accelerator",)
    assert ("note", "the script used no accelerator") in [
        (name, cell.text) for name, cell in effective_rows(report)
    ]


@pytest.mark.parametrize(("loaders", "source"), [((), Source.ASSUMED), (None, Source.MEASURED)])
def test_samples_that_no_loader_counted_are_assumed_and_those_of_a_loader_measured(loaders, source):
    world = World() if loaders is None else reporting(loaders=[])
    report = work(world, audit, ("my-train", "--batch-size", "32"), device="cpu").audit
    assert (
        dict(effective_rows(report))["effective batch"].source
        is source
        is report.effective.samples_source
    )


@pytest.mark.parametrize(("batches", "hinted"), [(7, True), (0, False)])
def test_a_command_that_never_steps_is_no_audit_and_batches_without_a_step_hint_at_accumulation(
    batches, hinted
):
    def without_steps(result):
        loaders = [dataclasses.replace(result.reports[0].loaders[0], batches_seen=batches)]
        reports = (dataclasses.replace(result.reports[0], loaders=loaders, steps=0),)
        return dataclasses.replace(result, outcome=Outcome.NO_STEP, reports=reports)

    with pytest.raises(TrialFailed, match="made no optimizer step") as caught:
        work(reporting(without_steps), audit, ("my-train", "--batch-size", "8"), device="cpu")
    hint = "accumulation may need more batches than an epoch has: the trial met 7 batches"
    assert (hint in caught.value.suggestion) is hinted


@pytest.mark.parametrize(
    ("flag", "code"),
    [("--train.global_batch_size", []), ("--train.max_tokens", ["hidden-accumulation"])],
)
def test_an_accumulation_that_follows_from_a_flag_for_the_whole_update_is_asked_for(flag, code):
    world = reporting(
        lambda result: dataclasses.replace(result, samples_per_step=128),
        micro_batches_per_step=[4] * 20,
    )
    report = work(
        world, audit, ("my-train", "--train.micro_batch_size", "32", flag, "128"), device="cpu"
    ).audit
    assert [finding.code for finding in report.findings] == code
    assert report.requested.get("accumulation") == (None if code else 4)
