"""A script that fails by itself above some batch size, on a card where memory would allow more."""

from __future__ import annotations

import pytest
from brimful.decide.own_failures import MORE_TRACES, OwnFailures
from brimful.decide.units import search_in_units

from brimful.decide.memory.search_traced import MAX_TRACES, search_largest
from brimful.values import Limits, Outcome
from tests.decide.programs import GIB, MIB, Script, affine, card, drive, network


def searched(script: Script, last: int, search=None):
    """The conclusion, and the sizes traced, where the script runs up to `last` and fails above it."""
    return drive(search or search_largest(card(35 * GIB), Limits()), script.trace, crashes=lambda size: size > last)


# 20 kB a sample: memory alone would allow nearly two millions.
LIGHT = Script([("malloc", "w", affine(50 * MIB, 0)), ("malloc", "a", affine(0, 20_000)), ("free", "a")])


@pytest.mark.parametrize("last", [30, 300, 3000, 20_000, 300_000])
def test_sizes_below_the_one_at_which_the_script_fails_are_tried(last):
    found, asked = searched(LIGHT, last)
    largest, belief = found.belief.largest_batch_size, found.belief
    assert largest in asked and 0.9 * last <= largest <= last
    ceiling = min(size for size in asked if size > last)
    assert belief.limited_by == f"the script, which fails at {ceiling}"
    assert found.failed is None, "it is a ceiling, and not the end of the search"
    assert len(asked) <= MAX_TRACES + MORE_TRACES
    gap = any("no trials were left" in note and f"{ceiling:,}" in note for note in found.notes)
    assert gap == (ceiling - largest > max(1, largest // 20)), "what was not tried in between is said, and only then"


@pytest.mark.parametrize("seed", range(8))
def test_a_network_that_fails_not_far_below_its_budget_is_named_within_a_tenth(seed):
    script = network(seed)
    free = drive(search_largest(card(35 * GIB), Limits()), script.trace)[0].belief.largest_batch_size
    for share in (0.3, 0.6, 0.9):
        last = int(free * share)
        found, _ = searched(script, last)
        assert 0.9 * last <= found.belief.largest_batch_size <= last
        assert "the script" in found.belief.limited_by


def test_a_script_that_fails_above_what_fits_is_limited_by_the_budget():
    script = network(3)
    free, asked = drive(search_largest(card(20 * GIB), Limits()), script.trace)
    largest = free.belief.largest_batch_size
    found, again = searched(script, largest, search_largest(card(20 * GIB), Limits()))
    assert again == asked
    assert (found.belief.largest_batch_size, found.belief.limited_by) == (largest, "budget")


def test_no_size_is_named_that_did_not_run_though_the_laws_are_sure_of_its_memory():
    found, asked = searched(network(2), 40)
    assert found.belief.largest_batch_size == max(size for size in asked if size <= 40)


def test_a_data_set_smaller_than_the_ceiling_limits_as_before():
    found, _ = searched(LIGHT, 3000, search_largest(card(35 * GIB), Limits(dataset_length=2000)))
    assert (found.belief.largest_batch_size, found.belief.limited_by) == (2000, "dataset")


def test_among_multiples_the_ceiling_is_one_of_them_and_its_words_stay():
    found, asked = searched(LIGHT, 3000, search_in_units(card(35 * GIB), Limits(), MAX_TRACES, 8, 8, "in eights"))
    assert found.belief.largest_batch_size % 8 == 0 and found.belief.largest_batch_size >= 0.9 * 3000
    assert found.belief.limited_by == f"the script, which fails at {min(size for size in asked if size > 3000)}"


def test_the_next_size_is_half_way_in_octaves_until_the_ceiling_is_close():
    own = OwnFailures()
    assert own.most_to_try(10) is None and own.note(10) is None
    own.add(1000, None, Outcome.CRASHED)
    assert own.most_to_try(10) == 100
    assert own.most_to_try(990) == 990 and own.note(990) is None
    assert own.most_to_try(None) == 999
    assert own.most_to_try(2000) is None, "a larger size that ran is not below it"
    assert "1,000" in own.said[1000] and "crashed" in own.said[1000]
