"""What limits a search besides memory: a script that raises an error above some batch size, and
multiples of a size.
"""

from dataclasses import replace

import pytest

from brimful.decide.memory.bracket import Bracket, Given, least_step, loader_cap, upper_limit
from brimful.decide.memory.known_traces import MOST_TRIALS, Traced
from brimful.decide.memory.search_traced import search_largest
from brimful.values import Limits, Outcome
from brimful_inside.simulator.trace import Free, Malloc, Phase, Trace
from tests.brimful.decide.programs import (
    GIB,
    MIB,
    Script,
    affine,
    card,
    completed,
    drive,
    fits,
    network,
)


def searched(script: Script, last: int, search=None):
    """The conclusion, and the sizes traced, where the script runs up to `last` and fails
    above it.
    """

    def shown_at(size: int):
        return (
            Traced(Outcome.CRASHED, failure=f"the script, which fails at {size}")
            if size > last
            else script.trace(size)
        )

    return drive(search or search_largest(card(35 * GIB), Limits()), shown_at)


# 20 kB a sample: memory alone would allow nearly two millions.
LIGHT = Script(
    [("malloc", "w", affine(50 * MIB, 0)), ("malloc", "a", affine(0, 20_000)), ("free", "a")]
)


@pytest.mark.parametrize("last", [30, 300, 3000, 20_000, 300_000])
def test_sizes_below_the_one_at_which_the_script_fails_are_tried(last):
    conclusion, asked = searched(LIGHT, last)
    largest, estimate = conclusion.estimate.largest_batch_size, conclusion.estimate
    assert largest in asked and 0.9 * last <= largest <= last
    error = min(size for size in asked if size > last)
    assert estimate.limited_by == f"the script, which fails at {error}"
    assert conclusion.failed is None, "it is a limit, and not the end of the search"
    assert len(asked) <= MOST_TRIALS
    gap = any("no trials were left" in note and f"{error:,}" in note for note in conclusion.notes)
    assert gap == (error - largest > least_step(largest)), (
        "what was not tried in between is noted, and only then"
    )


@pytest.mark.parametrize("seed", range(2))
def test_a_network_that_fails_not_far_below_its_budget_is_named_within_a_tenth(seed):
    script = network(seed)
    free = drive(search_largest(card(35 * GIB), Limits()), script.trace)[
        0
    ].estimate.largest_batch_size
    for share in (0.3, 0.6, 0.9):
        last = int(free * share)
        conclusion, _ = searched(script, last)
        assert 0.9 * last <= conclusion.estimate.largest_batch_size <= last
        assert "the script" in conclusion.estimate.limited_by


def test_a_script_that_fails_above_what_fits_is_limited_by_the_budget():
    script = network(3)
    free, asked = drive(search_largest(card(20 * GIB), Limits()), script.trace)
    largest = free.estimate.largest_batch_size
    conclusion, again = searched(script, largest, search_largest(card(20 * GIB), Limits()))
    assert again == asked
    assert (conclusion.estimate.largest_batch_size, conclusion.estimate.limited_by) == (
        largest,
        "budget",
    )


def test_the_next_size_is_half_way_in_octaves_until_the_error_is_close():
    untried = Bracket(Limits(), fitting={10})
    assert untried.largest_without_error is None and untried.untried_note() is None
    for low, most in ((10, 100), (990, 990), (None, 999), (2000, None)):
        size = Bracket(Limits(), fitting={low} - {None})
        size.add_script_error(1000, None, Outcome.CRASHED)
        assert size.largest_without_error == most
        assert (size.untried_note() is not None) == (low == 10)
        assert "1,000" in size.script_errors[1000] and "crashed" in size.script_errors[1000]


def test_low_and_high_obey_limits_that_become_known_late():
    bracket = Bracket(Limits(max_batch_size=900), fitting={5, 40, 700}, too_large={3, 800})
    assert (bracket.low, bracket.high, bracket.largest_to_try) == (700, 800, 799)
    bracket.learn_dataset_length(100)
    bracket.learn_dataset_length(None)
    assert (bracket.low, bracket.high, bracket.largest_to_try) == (40, 800, 100)


def test_no_size_is_made_beyond_what_the_script_has_or_always_makes():
    bracket = Bracket(Limits(dataset_length=320))
    assert [bracket.made_at(size) for size in (5, 320, 400)] == [5, 320, 320]
    assert Bracket(Limits(dataset_length=320), 3).made_at(200) == 320
    assert Bracket(Limits()).made_at(400) == 400
    for size in (5, 12):
        bracket.learn_given(size, 16, 4)
    assert bracket.ignored and bracket.made_at(5) == 16


@pytest.mark.parametrize(
    ("limits", "tighter"),
    [
        ({}, (None, None)),
        ({"dataset_length": 100, "max_batch_size": 200}, (100, "dataset")),
        ({"dataset_length": 100, "max_batch_size": 64}, (64, "max_batch_size")),
    ],
)
def test_the_tighter_limit_is_named(limits, tighter):
    assert upper_limit(Limits(**limits)) == tighter


def test_limits_that_leave_nothing_are_refused():
    with pytest.raises(ValueError, match=r"no batch size from 1 to 0 \(dataset\)"):
        Bracket(Limits(dataset_length=0))


# Multiples: a batch that is split over three cards of a process.
GROUP, CARD = 3, card(4000 * MIB)


def of_each_card(batch_size: int) -> tuple[Trace, ...]:
    """Weights on each of three cards, and work by its share of the batch; the first card gathers
    what comes out.
    """
    share = -(-batch_size // GROUP)
    traces = []
    for index, samples in enumerate([share, share, batch_size - 2 * share]):
        rows = [
            Phase("train"),
            Malloc(1, 40 * MIB, "weights"),
            Malloc(2, samples * 3 * MIB, "work"),
        ]
        if index == 0:
            rows += [Malloc(3, batch_size * MIB, "gathered"), Free(3)]
        traces.append(Trace({"trace_version": 1}, [*rows, Free(2)]))
    return tuple(traces)


def split(limits: Limits | None = None, length: int | None = None, first: int = 6):
    """(conclusion, the sizes traced)."""
    search = search_largest(CARD, limits or Limits(), first_size=first, multiple_of=GROUP)
    return drive(search, lambda size: completed(*of_each_card(size), dataset_length=length))


def test_only_multiples_are_tried_and_the_largest_of_them_is_named_in_samples():
    conclusion, asked = split()
    estimate, largest = conclusion.estimate, conclusion.estimate.largest_batch_size
    assert (
        estimate.exact
        and estimate.method == "extrapolated"
        and conclusion.traced == tuple(asked)
        and asked[0] == 6
    )
    for size, expected in ((largest, True), (largest + GROUP, False)):
        assert all(fits(CARD, trace) for trace in of_each_card(size)) is expected
    points = [point.batch_size for point in (*estimate.curve, *estimate.probes)]
    assert all(
        size % GROUP == 0 for size in [largest, *asked, *points, *conclusion.size_model.fitted_at]
    )


def test_the_model_answers_for_uneven_batches_by_the_fuller_cards():
    conclusion, _ = split()
    for size in (30, 31, 32, 33):
        even = -(-size // GROUP) * GROUP
        expected = [CARD.replay(trace, None).peak for trace in of_each_card(even)]
        assert [played.peak for played in conclusion.size_model.replay_cards_at(size)] == expected


def test_limits_are_kept_in_whole_groups():
    assert split(Limits(max_batch_size=100))[0].estimate.largest_batch_size == 99
    assert split(length=50)[0].estimate.largest_batch_size == 48
    assert all(split(first=first)[1][0] == first for first in (3, 6, 12))


# --- whether a loader follows the batch size, by what it gave at several sizes ---


def given(batch, sizes=(5, 12), ranks=1, accumulated=lambda size: 1) -> dict[int, Given]:
    return {size: Given(batch(size), batch(size) * ranks * accumulated(size)) for size in sizes}


def by_input(batch, sizes):
    """The same without a loader."""
    return {size: replace(shown, by_input=True) for size, shown in given(batch, sizes).items()}


@pytest.mark.parametrize(
    ("shown", "length", "cap"),
    [
        (given(lambda size: size), None, None),
        (given(lambda size: min(size, 2)), None, 2),
        (given(lambda size: 9), None, 9),
        (given(lambda size: 128), None, None),
        (given(lambda size: 128, (5, 12, 500)), None, 128),
        (given(lambda size: max(size, 16)), None, None),
        (given(lambda size: max(size, 16), (5, 12, 500)), None, None),
        (given(lambda size: min(size, 64), (5, 12, 1806)), None, 64),
        (given(lambda size: min(size, 64), (5, 12, 1806)), 64, None),
        (given(lambda size: min(size, 64), (5, 12, 1806), ranks=2), 2000, 64),
        (given(lambda size: max(1, size // 8), ranks=8), None, None),
        (given(lambda size: min(size, 4), accumulated=lambda size: size // 4), None, None),
        (
            given(
                lambda size: min(size, 64),
                (5, 12, 1806),
                accumulated=lambda size: max(1, size // 64),
            ),
            None,
            None,
        ),
        (given(lambda size: size // 2, (6, 12, 1806)), None, None),
        ({}, None, None),
        (by_input(lambda size: min(size, 64), (5, 12, 1806)), None, 64),
        (by_input(lambda size: 64, (5, 12, 1806)), None, None),
        (by_input(lambda size: 64, (5, 12)), None, None),
    ],
)
def test_a_cap_is_what_two_sizes_show_and_no_share_of_a_step(shown, length, cap):
    assert loader_cap(shown, length) == cap
