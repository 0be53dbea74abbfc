"""`audit` on samples whose truth is known: what was asked beside what happens."""

from __future__ import annotations

import dataclasses

import pytest
from world import World, work

from brimful.errors import TrialFailed, UsageError
from brimful.show.sections import effective_rows
from brimful.values import Outcome, Source
from brimful.verbs import audit


def test_asked_and_effective_stand_side_by_side():
    found = work(World(cap=2), audit, ("my-train", "--batch-size", "64"), device="cpu").audit
    assert found.requested["batch_size"] == 64
    assert found.effective.loader_batch_size == 2
    assert [finding.code for finding in found.findings] == ["hidden-cap"]
    assert all(finding.problem and finding.explanation and finding.suggestion for finding in found.findings)


def test_a_sound_script_gives_no_finding_on_a_cpu():
    found = work(World(), audit, ("my-train", "--batch-size", "50"), device="cpu").audit
    assert found.findings == ()
    assert (found.effective.ranks, found.effective.batches_per_step, found.effective.samples_per_step) == (1, 1, 50)


def test_times_are_absent_on_an_imaginary_card_and_not_zero():
    found = work(World(), audit, ("my-train", "--batch-size", "50"), gpu_memory="4GiB").audit
    assert found.loading_share is None
    assert found.step_s is None


def test_an_audit_needs_the_values_in_use():
    with pytest.raises(UsageError, match="open"):
        work(World(), audit, device="cpu")
    assert work(World(), audit, device="cpu", settings={"batch_size": 50}).audit.effective.loader_batch_size == 50


def test_a_command_that_never_steps_is_no_audit():
    with pytest.raises(TrialFailed, match="no optimizer took a step"):
        work(World(outcome_of=lambda trial, size: Outcome.NO_STEP), audit, ("my-train", "--batch-size", "8"), device="cpu")


def test_peaks_of_an_imaginary_card_are_predicted_and_those_of_a_machine_measured():
    assert work(World(), audit, ("my-train", "--batch-size", "32"), gpu_memory="4GiB").audit.peak_source is Source.PREDICTED
    assert work(World(), audit, ("my-train", "--batch-size", "32"), device="cpu").audit.peak_source is Source.MEASURED


def test_notes_of_the_trial_are_in_the_audit():
    class Talking(World):
        def launch(self, *args, **more):
            return dataclasses.replace(super().launch(*args, **more), notes=("the script used no accelerator",))

    record = work(Talking(), audit, ("my-train", "--batch-size", "32"), device="cpu")
    assert record.audit.notes == ("the script used no accelerator",)
    assert ("note", "the script used no accelerator") in [(name, cell.text) for name, cell in effective_rows(record.audit)]


def test_samples_that_no_loader_counted_are_assumed_and_those_of_a_loader_measured():
    class WithoutLoader(World):
        def launch(self, *args, **more):
            seen = super().launch(*args, **more)
            return dataclasses.replace(seen, reports=tuple(dataclasses.replace(one, loaders=[]) for one in seen.reports))

    for world, source in ((WithoutLoader(), Source.ASSUMED), (World(), Source.MEASURED)):
        found = work(world, audit, ("my-train", "--batch-size", "32"), device="cpu").audit
        assert dict(effective_rows(found))["samples in a step"].source is source is found.effective.samples_source


@pytest.mark.parametrize(("batches", "hinted"), [(7, True), (0, False)])
def test_batches_without_a_step_hint_at_an_accumulation_larger_than_an_epoch(batches, hinted):
    class NeverSteps(World):
        def launch(self, *args, **more):
            seen = super().launch(*args, **more)
            loaders = [dataclasses.replace(seen.reports[0].loaders[0], batches_seen=batches)]
            reports = (dataclasses.replace(seen.reports[0], loaders=loaders, steps=0),)
            return dataclasses.replace(seen, outcome=Outcome.NO_STEP, reports=reports)

    with pytest.raises(TrialFailed) as caught:
        work(NeverSteps(), audit, ("my-train", "--batch-size", "8"), device="cpu")
    assert (
        "accumulation may need more batches than an epoch has: the trial saw 7 batches" in caught.value.suggestion
    ) is hinted
