"""The search where no model of sizes is confirmed: trials alone show where the edge is."""

from brimful.decide.memory.search_traced import MOST_TRACES, Traced, search_largest
from brimful.values import Limits, Outcome
from brimful_inside.simulator.trace import Free, Malloc, Trace
from tests.brimful.decide.programs import CONTEXT, GIB, MIB, card, drive, true_largest


def of_random_boxes(*temporaries):
    """No two batches have the same operations, so that no model is ever confirmed. The temporaries
    are made one by one.
    """

    def trace_of(b: int) -> Trace:
        rows = [Malloc(-1, 300 * MIB, "w"), Malloc(-2, MIB, f"of {b} boxes")]
        for number, size in enumerate(temporaries):
            rows += [Malloc(number, int(size(b)), "t"), Free(number)]
        return Trace({}, rows)

    return trace_of


def on_a_full_card(chosen, trace_of):
    """What does not get through on the card is cut off there, and shows no peak."""

    def shown(b: int):
        is_full = chosen.replay(trace_of(b), chosen.capacity_bytes).full is not None
        return Traced(Outcome.OUT_OF_DEVICE_MEMORY) if is_full else trace_of(b)

    return shown


def test_a_size_that_fits_by_giving_cached_memory_back_is_no_edge_to_creep_up_from():
    """Each temporary is larger than the one before: the card reserves all of them, or the largest
    alone where it is full.
    """
    trace_of = of_random_boxes(
        *(lambda b, tenths=tenths: 2 * MIB * tenths * b for tenths in range(10, 18))
    )
    chosen = card(20 * GIB, high=0.03, capacity=20 * GIB - CONTEXT)
    conclusion, sizes = drive(search_largest(chosen, Limits()), on_a_full_card(chosen, trace_of))
    largest = conclusion.estimate.largest_batch_size
    assert largest == true_largest(chosen, trace_of, largest) == 561 and 562 in sizes
    assert not any("no trials were left" in note for note in conclusion.notes)


def test_a_search_that_ends_before_anything_was_too_large_says_so():
    conclusion, sizes = drive(
        search_largest(card(20 * GIB), Limits()), of_random_boxes(lambda b: b)
    )
    assert len(sizes) == MOST_TRACES and max(sizes) == conclusion.estimate.largest_batch_size
    assert (
        f"batch size {max(sizes):,} fits: no trials were left for larger ones" in conclusion.notes
    )
