from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory.fit import (
    NCCL_OF_MORE,
    NCCL_OF_TWO,
    ExtrapolatedPeaks,
    context_of,
    curve_sizes,
    largest_that,
    slack_of,
)
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from brimful.measure.gpus import find_gpu
from brimful.values import Estimate, IntervalPart, Source
from brimful_inside.simulator.allocator_settings import settings_from
from brimful_inside.simulator.assumptions import PLACEMENT, SCALED, SKIPPED_STEPS, WORKSPACES
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.replay import Peaks, Replayed
from brimful_inside.simulator.trace import Free, Malloc, Trace
from tests.brimful.decide.programs import GIB, MIB, card, fits, network


def fitted(script):
    return fit_size_model({size: program_of(script.trace(size)) for size in (5, 12)})


@given(
    seed=st.integers(0, 10**6),
    mib=st.integers(50, 3000),
    upper=st.one_of(st.none(), st.integers(1, 400)),
)
@settings(max_examples=40, deadline=None)
def test_testing_every_size_from_above_names_what_a_bisection_names(seed, mib, upper):
    peaks = ExtrapolatedPeaks(fitted(network(seed, layers=5)), card(mib * MIB, context=0))
    bisected = ExtrapolatedPeaks(peaks.model, peaks.card)
    assert peaks.largest(1, upper) == largest_that(bisected.fits, 1, upper)
    assert sum(peaks._fits.values()) <= sum(bisected._fits.values()), (
        "what fits is what a replay to the end costs"
    )


@given(
    edge=st.integers(1, 3000), holes=st.sets(st.integers(1, 20)), bumps=st.sets(st.integers(1, 8))
)
def test_what_is_named_fits_and_nothing_larger_in_the_window_does(edge, holes, bumps):
    fitting = (set(range(1, edge + 1)) - {edge - h for h in holes if edge - h > 1}) | {
        edge + b for b in bumps
    }
    largest = largest_that(fitting.__contains__, 1, None)
    assert largest in fitting
    assert not any(largest + d in fitting for d in range(1, 9))


def test_nothing_fits_where_not_even_the_smallest_does_and_no_size_beyond_the_limit_is_tried():
    assert largest_that(lambda b: False, 1, None) is largest_that(lambda b: b > 100, 1, 50) is None
    assert largest_that(lambda b: b <= 37 or pytest.fail("beyond the limit"), 1, 37) == 37


WEIGHTS = [Malloc(1, 9 * GIB + 524 * MIB, "weights")]


@pytest.mark.parametrize(
    ("chosen", "rows", "says"),
    [
        (card(10 * GIB), WEIGHTS, "fits"),
        (card(10 * GIB, high=0.05), [], "fits"),
        (card(10 * GIB, high=0.05), WEIGHTS, "tight"),  # the lower end is within the budget
        (card(9 * GIB, high=0.01), WEIGHTS, "does_not_fit"),
    ],
)
def test_the_upper_end_of_the_interval_decides_whether_it_fits(chosen, rows, says):
    assert verdict(chosen, rows) == says


def test_what_gets_through_by_giving_cached_memory_back_fits_and_the_retries_are_counted():
    rows = [
        Malloc(1, 600 * MIB, "a"),
        Free(1),
        Malloc(2, 700 * MIB, "b"),
        Free(2),
        Malloc(3, 600 * MIB, "a"),
    ]
    chosen = card(1000 * MIB, context=0, capacity=1000 * MIB)
    assert verdict(chosen, rows) == "fits"
    assert chosen.replay(Trace({}, rows), chosen.sure_bytes).retries == 1
    assert chosen.shown(partial(chosen.replay, Trace({}, rows))).peak.reserved == 700 * MIB, (
        "what PyTorch reserves where it is limited to the budget"
    )


def test_the_interval_of_what_fits_ends_at_the_cards_memory():
    rows = [Malloc(1, 600 * MIB, "a"), Free(1), Malloc(2, 700 * MIB, "b"), Free(2)]
    chosen = card(1500 * MIB, context=0, high=0.5, capacity=1500 * MIB)
    play = partial(chosen.replay, Trace({}, rows))
    assert (
        chosen.verdict(play) == "fits" and chosen.peak(play).device_interval_bytes[1] == 1500 * MIB
    )
    assert chosen.estimate(chosen.shown(play).peak).device_interval_bytes[1] > 1500 * MIB, (
        "where it does not fit"
    )


@pytest.mark.parametrize("full_from", [900, 1000, 2000])
def test_what_runs_in_less_room_and_not_in_all_of_it_does_not_fit(full_from):
    chosen = card(1000 * MIB, context=0, capacity=1000 * MIB, high=0.2)

    def replayer(room):
        full = room >= full_from * MIB
        return Replayed({}, Peaks(0, 0), may_be_full=full)

    assert chosen.sure_bytes < 900 * MIB
    assert chosen.fits(replayer) == (full_from == 2000)


def verdict(chosen, rows) -> str:
    return chosen.verdict(partial(chosen.replay, Trace({}, rows)))


def test_an_estimate_has_the_three_names_of_a_peak_and_its_interval():
    tried = card(10 * GIB, context=GIB, high=0.1).estimate(Peaks(3 * GIB, 4 * GIB))
    assert (tried.allocated_bytes, tried.reserved_bytes, tried.device_bytes) == (
        3 * GIB,
        4 * GIB,
        5 * GIB,
    )
    low, high = tried.device_interval_bytes
    assert low <= 4.6 * GIB + 1 and high >= 5.4 * GIB - 1
    assert tried.source is Source.PREDICTED and len(tried.interval_parts) == 1
    measured = "context measured on 2026-11-20 on this machine"
    known = replace(card(10 * GIB), calibration=measured, context_slack_bytes=(1, 2))
    assert known.estimate(Peaks(GIB, GIB)).interval_parts == (
        IntervalPart("CUDA context", 1, 2, measured),
    )


@given(
    reserved=st.integers(0, 1 << 40),
    slack=st.tuples(st.integers(0, GIB), st.integers(0, GIB)),
    high=st.floats(0, 0.2),
    spread=st.dictionaries(
        st.sampled_from([PLACEMENT, WORKSPACES, SKIPPED_STEPS, SCALED]),
        st.tuples(st.integers(0, GIB), st.integers(0, GIB)),
    ),
)
def test_an_interval_is_the_sum_of_its_parts_the_largest_first(reserved, slack, high, spread):
    chosen = replace(card(10 * GIB, high=high), context_slack_bytes=slack)
    peak = chosen.estimate(Peaks(0, reserved), spread=spread)
    parts, (low, most) = peak.interval_parts, peak.device_interval_bytes
    below, above = (sum(ends) for ends in zip((0, 0), *map(ends_of, parts), strict=True))
    assert (low, most) == (max(0, peak.device_bytes - below), peak.device_bytes + above)
    assert [*map(sum, map(ends_of, parts))] == sorted(map(sum, map(ends_of, parts)), reverse=True)
    assert all(map(sum, map(ends_of, parts))), "what is exact is no part"
    for name, (under, over) in spread.items():
        assert not (under or over) or any(
            part.name == name and part.below_bytes >= under and part.above_bytes == over
            for part in parts
        )


def ends_of(part: IntervalPart) -> tuple[int, int]:
    return part.below_bytes, part.above_bytes


def test_a_picture_reaches_beyond_the_largest_size_and_not_beyond_the_limits():
    sizes = curve_sizes(100, 1, None)
    assert sizes == sorted(set(sizes)) and 100 in sizes and max(sizes) > 100
    assert max(curve_sizes(100, 1, 100)) == 100
    assert curve_sizes(1, 1, 1) == [1]
    assert (
        len(curve_sizes(100, 1, None, rows=1_000))
        > len(curve_sizes(100, 1, None, rows=12_000))
        == 11
    ), "of a long program"
    assert len(curve_sizes(100, 1, None, rows=10**9)) >= 8


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@given(
    seed=st.integers(0, 10**6),
    budget=st.integers(1, 6000),
    capacity=st.sampled_from([None, 900, 3000]),
)
@settings(max_examples=30, deadline=None)
def test_a_model_says_of_what_fits_what_a_trace_of_that_size_says(conf, seed, budget, capacity):
    script = network(seed, layers=4)
    room = None if capacity is None else capacity * MIB
    chosen = replace(card(budget * MIB, high=0.03, capacity=room), settings=settings_from(conf))
    peaks = ExtrapolatedPeaks(fitted(script), chosen)
    for size in (1, 20, 80, 300, 1000, 80):
        assert peaks.fits(size) == fits(chosen, script.trace(size))
    for size in (20, 1000):
        assert peaks.at(size) == chosen.shown(partial(chosen.replay, script.trace(size))), (
            "too large, and whole all the same"
        )


@given(budget=st.integers(0, 1 << 45), context=st.integers(0, 1 << 32), high=st.floats(0, 0.5))
def test_what_may_be_reserved_at_most_fits_and_a_byte_more_does_not(budget, context, high):
    chosen = card(budget, context, high)
    for most, end in ((chosen.sure_bytes, 1), (chosen.hoped_bytes, 0)):
        assert chosen.around(most + 1 + context)[end] > budget
        assert most < 0 or chosen.around(most + context)[end] <= budget


def test_a_size_that_turned_out_too_large_is_not_replayed_again(monkeypatch):
    script, chosen = network(3), card(20 * GIB)
    peaks = ExtrapolatedPeaks(fitted(script), chosen)
    largest = peaks.largest(5, None)
    assert largest is not None and not all(peaks._fits.values())
    monkeypatch.setattr(SizeModel, "replay_at", lambda *args, **kwargs: pytest.fail("replayed"))
    assert peaks.largest(5, None) == largest


# --- the context of a program on a card


def test_a_measured_context_and_a_measured_share_of_cudnn_leave_no_doubt():
    parts = {
        "context_bytes": Estimate(600 << 20, Source.MEASURED),
        "cudnn_bytes": Estimate(300 << 20, Source.MEASURED),
    }
    convolution = context_of(replace(find_gpu("a100-40gb"), **parts), uses_cudnn=True)
    assert convolution.value == 900 << 20 and convolution.source is Source.MEASURED
    assert slack_of(convolution) == (0, 0)


def test_an_assumed_context_widens_the_interval_by_what_is_not_known_of_it():
    below, above = slack_of(context_of(find_gpu("t4"), uses_cudnn=False))
    assert below > 0 and above > 0
    known = card(10**10, 10**9, 0.01)
    unknown = replace(known, context_slack_bytes=(below, above))
    played = Replayed({}, Peaks(0, 10**9))
    assert unknown.upper(played) == known.upper(played) + above
    names = [
        {part.name for part in one.estimate(played.peak).interval_parts} for one in (unknown, known)
    ]
    assert ["CUDA context" in parts for parts in names] == [True, False]


def test_each_communicator_adds_buffers_of_its_own_and_widens_the_context():
    gpu = replace(find_gpu("a100-40gb"), context_bytes=Estimate(1000, Source.MEASURED))
    assert context_of(gpu, False, []) == context_of(gpu, False, [1]) == gpu.context_bytes, (
        "a card alone has no peer"
    )
    assert context_of(gpu, False, [8, 2]).value == 1000 + NCCL_OF_MORE + NCCL_OF_TWO
    pair = context_of(gpu, False, [2])
    assert pair.value == 1000 + NCCL_OF_TWO and pair.source is Source.ASSUMED
    assert slack_of(pair) == (NCCL_OF_TWO * 0.75, NCCL_OF_TWO * 0.5)


def test_a_card_among_others_has_the_buffers_and_the_doubt_of_one_group():
    gpu = find_gpu("a100-40gb")
    alone, group = (context_of(gpu, False, communicators) for communicators in ([], [4]))
    played = replace(
        card(10 * GIB, alone.value, capacity=30 * GIB), context_slack_bytes=slack_of(alone)
    )
    four = played.among(4)
    assert four.context_bytes == group.value and four.context_slack_bytes == slack_of(group)
    assert four.capacity_bytes + four.context_bytes == played.capacity_bytes + played.context_bytes
    assert four.sure_bytes < played.sure_bytes - NCCL_OF_MORE and played.among(1) == played
