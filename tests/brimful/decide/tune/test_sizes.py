"""The table of batch sizes: what was measured at a size is that, and every other number is called
predicted.
"""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.tune.sizes import between_traces, on_the_curve, sizes_to_show, tried_sizes
from brimful.values import Answer, Estimate, Outcome, Point, Source, Verdict
from tests.brimful.decide.builders import loader, report, sample


def ran(
    size: int,
    samples: int | None = None,
    length: int | None = None,
    accumulation: int = 1,
    ranks: int = 1,
    **changes,
):
    """A trial at a batch size over 1,000 samples, of `length` batches an epoch on each rank."""
    one = replace(loader(size, 1000), length=length, sampler_samples=1000 // ranks)
    seen = report([one], micro_batches_per_step=[accumulation] * 12, world_size=ranks)
    done = sample([seen], samples_per_step=samples or size * accumulation * ranks, **changes)
    return replace(done, trial=replace(done.trial, settings={"batch_size": size}))


RATE = Estimate(100.0, Source.MEASURED)
PEAK = Estimate(1 << 30, Source.MEASURED)


def at(size):
    return Answer({"batch_size": size})


def test_what_a_trial_counted_is_measured_and_an_epoch_that_nobody_waited_for_is_predicted():
    (row,) = tried_sizes(
        [ran(16, length=63, accumulation=2)],
        [Answer({"batch_size": 16}, Verdict.FITS, PEAK, samples_per_s=RATE)],
    )
    assert (row.effective_batch, row.updates_per_epoch) == (
        Estimate(32, Source.MEASURED),
        Estimate(31, Source.MEASURED, 31, 32),
    )
    assert row.peak_bytes == PEAK and row.fits
    assert (row.epoch_s.value, row.epoch_s.source) == (10.0, Source.PREDICTED)
    assert (row.step_s.value, row.step_s.source) == (0.32, Source.MEASURED)


def test_several_ranks_share_an_epoch():
    (row,) = tried_sizes(
        [ran(16, length=32, ranks=2)], [Answer({"batch_size": 16}, samples_per_s=RATE)]
    )
    assert row.effective_batch.value == 32 and row.updates_per_epoch.value == 32
    assert row.epoch_s.value == 10.0, "all of the 1,000 samples"


def test_an_update_of_a_fixed_total_is_no_smaller_than_a_batch_and_that_of_a_capped_loader_is():
    fixed = [ran(4, accumulation=16), ran(20, accumulation=3), ran(400)]
    capped = [ran(4, samples=4), ran(20, samples=12)]
    rows = tried_sizes(fixed, map(at, (16, 100, 600)))
    assert [row.effective_batch.value for row in rows] == [64, 100, 600]
    (row,) = tried_sizes(capped, [Answer({"batch_size": 600})])
    assert row.effective_batch.value == 12


@given(st.integers(1, 500), st.integers(1, 4), st.integers(1, 1000))
def test_other_sizes_follow_and_are_called_predicted(size, accumulation, other):
    rows = tried_sizes([ran(size, accumulation=accumulation)], map(at, {size, other}))
    assert [row.batch_size for row in rows] == sorted({size, other})
    (row,) = (row for row in rows if row.batch_size == other)
    if other != size:
        assert row.effective_batch.source is row.updates_per_epoch.source is Source.PREDICTED
        assert row.effective_batch.value == min(1000, other * accumulation)
    batches = math.ceil(1000 / other)
    most = row.updates_per_epoch.high or row.updates_per_epoch.value
    assert row.updates_per_epoch.value == batches // accumulation
    assert most == math.ceil(batches / accumulation)


def test_an_update_and_its_time_are_of_no_more_than_an_epoch_has():
    trials = [ran(5, length=200, accumulation=4), ran(1000, length=1, accumulation=4)]
    rows = tried_sizes(
        trials, [Answer({"batch_size": size}, samples_per_s=RATE) for size in (250, 512, 1000)]
    )
    updates = [(row.updates_per_epoch.value, row.updates_per_epoch.high) for row in rows]
    assert updates == [(1, None), (0, 1), (0, 1)]
    assert [row.effective_batch.value for row in rows] == [1000] * 3
    assert [row.step_s.value for row in rows] == [row.epoch_s.value for row in rows] == [10.0] * 3


def test_a_script_that_steps_at_the_end_of_an_epoch_has_a_step_more_there():
    trial = ran(48, length=21, accumulation=4)
    shown = replace(trial.reports[0], samples_per_step=[192] * 5 + [40] + [192] * 5)
    for seen, updates in ((trial, (5, 6)), (replace(trial, reports=(shown,)), (6, None))):
        (row,) = tried_sizes([seen], [Answer({"batch_size": 48})])
        assert (row.updates_per_epoch.value, row.updates_per_epoch.high) == updates


def test_an_epoch_has_no_time_for_what_drop_last_leaves_out():
    trial = ran(64, length=15)
    dropping = replace(trial.reports[0].loaders[0], drop_last=True)
    trial = replace(trial, reports=(replace(trial.reports[0], loaders=[dropping]),))
    rows = tried_sizes(
        [trial], [Answer({"batch_size": size}, samples_per_s=RATE) for size in (64, 600)]
    )
    assert [(row.updates_per_epoch.value, row.epoch_s.value) for row in rows] == [(15, 9.6), (1, 6)]


def test_a_size_that_ran_out_of_memory_has_its_row_and_no_time():
    spilled = replace(ran(64), outcome=Outcome.OUT_OF_DEVICE_MEMORY, reports=())
    known = [
        Answer({"batch_size": 64}, Verdict.DOES_NOT_FIT, samples_per_s=RATE),
        Answer({"batch_size": 16}, Verdict.FITS, PEAK),
    ]
    rows = tried_sizes([ran(16), spilled], known)
    assert rows[1].batch_size == 64 and rows[1].fits is False and rows[1].peak_bytes is None
    assert rows[1].epoch_s is rows[1].step_s is rows[1].samples_per_s is None
    assert rows[1].updates_per_epoch.source is Source.PREDICTED


def test_what_is_known_of_a_size_stands_and_only_the_rest_follows():
    known = Answer(
        {"batch_size": 64},
        Verdict.FITS,
        PEAK,
        effective_batch=Estimate(60, Source.PREDICTED),
        updates_per_epoch=Estimate(17, Source.PREDICTED),
        epoch_s=Estimate(99.0, Source.PREDICTED),
        samples_per_s=RATE,
        step_s=Estimate(0.5, Source.PREDICTED),
    )
    assert tried_sizes([ran(16)], [known]) == (known,)


def test_a_fixed_effective_batch_is_as_each_trial_counted_it():
    rows = tried_sizes(
        [ran(16, samples=64, accumulation=4), ran(32, samples=64, accumulation=2)],
        map(at, (16, 32)),
    )
    assert [row.effective_batch.value for row in rows] == [64, 64]


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.booleans())
def test_few_sizes_are_shown_evenly_spread_and_what_matters_always(largest, asked, spills):
    shown = sizes_to_show(largest, [asked, None], spills)
    assert {asked, largest} <= set(shown) and len(shown) <= 8 and shown == sorted(shown)
    assert any(size > largest for size in shown if size != asked) or not spills or asked > largest
    assert spills or max(shown) <= max(largest, asked)


def test_without_a_report_there_is_nothing_to_show():
    (row,) = tried_sizes([sample([])], [Answer({"batch_size": 8})])
    assert row == Answer({"batch_size": 8}) and tried_sizes([sample([])], []) == ()


@given(st.integers(1, 100), st.integers(1, 100), st.floats(0, 1e9), st.floats(0, 1e6))
def test_between_two_points_of_a_curve_lies_the_line_and_beyond_them_nothing(
    first, gap, base, each
):
    def value(size: int) -> Estimate:
        return Estimate(base + each * size, Source.PREDICTED, base, base + 2 * each * size)

    curve = [Point(size, value(size)) for size in (first, first + gap)]
    for size in (first, first + gap // 2, first + gap):
        peak = on_the_curve(curve, size)
        assert peak is not None and peak.source is Source.PREDICTED
        assert math.isclose(peak.value, value(size).value, rel_tol=1e-9)
        assert math.isclose(peak.high, value(size).high, rel_tol=1e-9)
    assert on_the_curve(curve, first + gap + 1) is on_the_curve(curve, first - 1) is None
    assert on_the_curve([], first) is None


@given(st.integers(2, 99), st.floats(0.0, 1e3))
def test_a_curve_that_no_trace_confirmed_says_nothing_that_the_traces_rule_out(size, at):
    traced = [
        Point(1, Estimate(10.0, Source.PREDICTED)),
        Point(100, Estimate(20.0, Source.PREDICTED)),
    ]
    curve = [traced[0], Point(size, Estimate(at, Source.PREDICTED)), traced[1]]
    peak = between_traces(traced, curve, size)
    straight = on_the_curve(traced, size)
    assert peak is not None and straight is not None
    assert peak.value == (at if 10.0 <= at <= 20.0 else straight.value)
    assert between_traces(traced, curve, 101) is None
