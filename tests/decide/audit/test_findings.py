from __future__ import annotations

import dataclasses

import pytest
from builders import GIB, device_budget, loader, machine, optimizer, peak, report, sample
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.audit.findings import findings
from brimful_inside.wire import BatchSeen, WorstBatch

ASKED = {"batch_size": 64, "lr": 1e-3}


def codes(a_sample, requested=ASKED, budget=None, cores=8):
    return [advice.code for advice in findings(a_sample, requested, budget, machine(cores))]


def only(a_sample, requested=ASKED, budget=None, cores=8):
    found = findings(a_sample, requested, budget, machine(cores))
    assert len(found) == 1, found
    assert all((found[0].problem, found[0].explanation, found[0].suggestion))
    return found[0]


def rates(*now, **others):
    """A trial whose optimizer has these learning rates."""
    return sample([report(optimizers=[optimizer(now, **others)])])


def repeating(distinct, total, **changes):
    return loader(32, 1024, batches=[BatchSeen(32, [[32]], f"{n % distinct}") for n in range(total)], **changes)


TWO_EPOCHS = loader(32, 224, batches=[BatchSeen(32, [[32]], f"{n % 7}") for n in range(14)], batches_seen=14, iterations=2)
WORST = WorstBatch(100, 1024, True, "lengths vary", [1, 2])
SOUND = {
    "a sound script": (sample(), ASKED),
    "no report": (sample([], samples_per_s=None), ASKED),
    "a batch size over all ranks": (
        sample([report([loader(32)], rank=rank, world_size=2) for rank in range(2)], samples_per_step=64), ASKED),
    "one step skipped": (sample([report(micro_batches_per_step=[1, 1, 1, 2, *[1] * 8])]), ASKED),
    "two loaders side by side": (sample([report([loader(), loader()], micro_batches_per_step=[2] * 12)]), ASKED),
    "an evaluation loader": (sample([report([loader(), loader(2, 100, role="eval", batches_seen=50)])]), ASKED),
    "a batch as large as the data set": (
        sample([report([loader(2000, 2000)])], samples_per_step=2000), {"batch_size": 2000}),
    "a second epoch": (sample([report([TWO_EPOCHS])], samples_per_step=32), {"batch_size": 32}),
    "batches that brimful made": (sample([report([repeating(1, 14)], worst_batch=WORST)]), {"batch_size": 32}),
    "one batch twice by chance": (sample([report([repeating(13, 14)])]), {"batch_size": 32}),
    "batches without checksums": (
        sample([report([loader(32, 1024, batches=[BatchSeen(32, [[32]], None)] * 12)])]), {"batch_size": 32}),
    "loading time that is not known": (sample(loading_share=None, step_s=()), ASKED),
    "few samples dropped": (sample([report([loader(64, 64 * 200 + 10, drop_last=True)])]), ASKED),
    "a warm-up": (rates(1e-4, first_learning_rates=[1e-6], initial_learning_rates=[1e-3]), ASKED),
    "one cycle": (rates(4e-5, initial_learning_rates=[4e-5], max_learning_rates=[1e-3]), ASKED),
    "a rate set by hand at each step": (rates(5e-4, first_learning_rates=[1e-4]), ASKED),
    "a slower backbone": (rates(1e-4, 1e-3), ASKED),
    "an optimizer without a rate": (rates(), ASKED),
    "a rate nobody asked for": (rates(0.7), {"batch_size": 64}),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_gives_no_finding(name):
    assert codes(*SOUND[name]) == []


@given(st.integers(1, 4096), st.integers(1, 200), st.integers(0, 8), st.floats(0, 0.2), st.booleans(), st.floats(1e-6, 1))
def test_no_sound_script_of_any_size_gives_a_finding(size, batches, workers, share, drop_last, rate):
    one = loader(size, size * batches, workers=workers, drop_last=drop_last)
    a_sample = sample([report([one], [optimizer((rate,))])], samples_per_step=size, loading_share=share)
    assert codes(a_sample, {"batch_size": size, "lr": rate, "num_workers": workers}) == []


def test_a_loader_that_gives_two_of_sixty_four_is_capped():
    advice = only(sample([report([loader(2, 512)])], samples_per_step=2))
    assert advice.code == "hidden-cap"
    assert "64" in advice.problem and "2" in advice.problem


def test_a_batch_size_split_into_micro_batches_is_accumulation_and_no_cap():
    one = report([loader(16)], micro_batches_per_step=[4] * 12)
    advice = only(sample([one], samples_per_step=64))
    assert advice.code == "hidden-accumulation"
    assert "A step sees the 64 samples asked for" in advice.explanation


def test_four_batches_a_step_that_nobody_asked_for_are_found():
    advice = only(sample([report(micro_batches_per_step=[4] * 12)], samples_per_step=256))
    assert advice.code == "hidden-accumulation"
    assert "4 batches" in advice.problem and "256 samples" in advice.problem


def test_accumulation_that_was_asked_for_is_no_finding():
    one = sample([report(micro_batches_per_step=[4] * 12)], samples_per_step=256)
    assert codes(one, ASKED | {"accumulation": 4}) == []
    assert codes(one, ASKED | {"accumulation": 2}) == ["hidden-accumulation"]


def test_another_accumulation_than_the_flag_says_has_a_flag_already():
    one = sample([report(micro_batches_per_step=[4] * 12)], samples_per_step=256)
    differs, silent = only(one, ASKED | {"accumulation": 2}), only(one)
    assert "you asked for 2" in differs.problem and "Make it a flag" not in differs.suggestion
    assert "no flag sets that" in silent.problem and silent.suggestion.startswith("Make it a flag")


def test_a_batch_larger_than_the_data_set_is_found_and_is_no_cap():
    advice = only(sample([report([loader(4096, 2000)])], samples_per_step=2000), {"batch_size": 4096})
    assert advice.code == "batch-exceeds-dataset"
    assert "4,096" in advice.problem and "2,000" in advice.problem


def test_workers_that_share_one_random_state_are_found():
    advice = only(sample([report([repeating(7, 14, workers=2)])], samples_per_step=32), {"batch_size": 32})
    assert advice.code == "repeated-batches"
    assert "7 of 14" in advice.problem and "2 loader workers" in advice.explanation


def test_waiting_for_data_is_found_with_the_workers_that_cure_it():
    advice = only(sample([report([loader(workers=0)])], loading_share=0.6))
    assert advice.code == "loader-bound"
    assert "60 %" in advice.problem
    assert advice.suggestion == "Set num_workers=2."  # 0.06 s to make, 0.04 s to compute


def test_a_loader_that_no_number_of_cores_can_cure_shows_it():
    advice = only(sample([report([loader(workers=0)])], loading_share=0.9), cores=4)
    assert "9 workers" in advice.suggestion and "4 cores" in advice.suggestion
    assert "nearly all" in only(sample([report([loader(workers=0)])], loading_share=0.995)).suggestion


def test_dropping_a_tenth_of_the_data_is_found_with_a_better_size():
    advice = only(sample([report([loader(300, 1000, drop_last=True)])], samples_per_step=300), {"batch_size": 300})
    assert advice.code == "remainder"
    assert "100 of 1,000" in advice.problem and "250" in advice.suggestion


@pytest.mark.parametrize(
    ("size", "length", "found"),
    [
        (300, 1000, True),
        (64, 1000, False),
        (64, 64 * 60 + 5, False),
        (64, 64 * 60 + 1, True),
        (64, 65, True),
        (64, 2048, False),
    ],
)
def test_a_short_last_batch_is_found_where_it_matters(size, length, found):
    result = codes(sample([report([loader(size, length)])], samples_per_step=size), {"batch_size": size})
    assert result == (["remainder"] if found else [])


def test_a_learning_rate_that_was_scaled_is_found():
    advice = only(sample([report(optimizers=[optimizer((0.025,))])]), {"batch_size": 64, "lr": 0.1})
    assert advice.code == "learning-rate"
    assert "0.1" in advice.problem and "0.025" in advice.problem and "0.25 times" in advice.problem


def test_a_scaled_rate_under_a_schedule_is_found():
    one = optimizer((2e-4,), first_learning_rates=[1e-6], initial_learning_rates=[2.5e-4])
    assert codes(sample([report(optimizers=[one])])) == ["learning-rate"]


def test_a_card_that_is_mostly_empty_is_found_with_the_warning_that_fullness_is_no_goal():
    advice = only(sample(peak=peak(device_bytes=2 * GIB)), budget=device_budget())
    assert advice.code == "memory-idle"
    assert "10 %" in advice.problem and "not a goal" in advice.explanation


def test_memory_of_a_cpu_or_of_a_full_batch_is_never_idle():
    small = sample(peak=peak(device_bytes=2 * GIB))
    assert codes(small, budget=dataclasses.replace(device_budget(), memory="host")) == []
    assert codes(small, budget=None) == []
    assert codes(sample(peak=peak(device_bytes=11 * GIB)), budget=device_budget()) == []
    whole = sample([report([loader(64, 64)])], peak=peak(device_bytes=2 * GIB))
    assert codes(whole, budget=device_budget()) == []
