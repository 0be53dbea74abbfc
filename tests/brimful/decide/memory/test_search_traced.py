import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory.bracket import least_step
from brimful.decide.memory.known_traces import MOST_TRACES, Traced
from brimful.decide.memory.search_traced import search_largest
from brimful.values import Limits, Outcome
from brimful_inside.simulator.trace import Free, Malloc, Phase, Trace
from tests.brimful.decide.programs import (
    CONTEXT,
    GIB,
    MIB,
    Script,
    affine,
    card,
    completed,
    drive,
    fits,
    network,
    true_largest,
)


def with_more(script: Script, *sizes) -> Script:
    more = [
        action
        for i, size in enumerate(sizes)
        for action in (("malloc", f"m{i}", size), ("free", f"m{i}"))
    ]
    return Script(script.actions + more)


def searched(chosen, shown_at, limits=None, *first_size):
    """(The conclusion, the sizes that were asked for, the largest.)"""
    conclusion, asked = drive(search_largest(chosen, limits or Limits(), *first_size), shown_at)
    return conclusion, asked, conclusion.estimate.largest_batch_size


def true_search(chosen, trace_of):
    """As `searched`, which has to find the true largest, or one less than 3 % below it."""
    conclusion, asked, largest = searched(chosen, trace_of)
    assert_near(chosen, trace_of, largest)
    return conclusion, asked, largest


def assert_near(chosen, trace_of, largest, upper=None):
    truth = true_largest(chosen, trace_of, largest or 1, upper)
    assert (largest is None) == (truth is None)
    assert largest is None or largest <= truth < largest + least_step(largest)


@given(seed=st.integers(0, 10**6), budget=st.integers(1, 40), high=st.sampled_from([0.0, 0.05]))
@settings(max_examples=12, deadline=None)
def test_affine_scripts_need_three_traces_and_the_true_largest_is_named(seed, budget, high):
    script, chosen = network(seed, layers=5), card(budget * GIB, high=high)
    conclusion, asked, largest = true_search(chosen, script.trace)
    assert conclusion.estimate.exact and conclusion.estimate.method == "extrapolated"
    assert len(asked) <= 4
    assert all(fits(chosen, script.trace(b)) for b in asked), "none out of memory"
    assert conclusion.estimate.limited_by == "budget"
    assert largest in asked


@given(
    seed=st.integers(0, 10**6),
    budget=st.integers(2, 40),
    bends_at=st.integers(1, 3000),
    first=st.integers(1, 64),
    asked=st.integers(1, 5000),
)
@settings(max_examples=8, deadline=None)
def test_the_largest_size_is_the_same_wherever_the_search_began_and_whichever_was_in_question(
    seed, budget, bends_at, first, asked
):
    script = with_more(network(seed, layers=5), lambda b: 3_000_000 * min(b, bends_at))
    chosen = card(budget * GIB, high=0.03, capacity=budget * GIB - CONTEXT)
    largest = {
        drive(search_largest(chosen, Limits(), **more), script.trace)[0].estimate.largest_batch_size
        for more in ({}, {"first_size": first}, {"asked": asked})
    }
    assert largest == {None} or max(largest) < min(largest) + least_step(min(largest))
    assert all(size is None or fits(chosen, script.trace(size)) for size in largest)


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [(None, [5, 12]), (6, [5, 12]), (8, [5, 8]), (40, [5, 40]), (90_000, [5, 12])],
)
def test_the_size_in_question_is_the_second_that_is_traced_where_it_is_neither_near_nor_too_large(
    asked, sizes
):
    assert (
        drive(search_largest(card(20 * GIB), Limits(), asked=asked), network(3, layers=5).trace)[1][
            :2
        ]
        == sizes
    )


def test_the_size_in_question_says_nothing_of_others_where_it_does_not_fit():
    """A large temporary is made from 30 to 39 samples: 39 does not fit, and 100 does."""
    script = with_more(Script(network(3, layers=5).actions), lambda b: 2 * GIB * (30 <= b < 40))
    chosen = card(2 * GIB)
    conclusion, sizes = drive(search_largest(chosen, Limits(), asked=39), script.trace)
    usual, _ = drive(search_largest(chosen, Limits()), script.trace)
    assert (
        sizes[:3] == [5, 39, 12]
        and conclusion.estimate.largest_batch_size == usual.estimate.largest_batch_size > 40
    )


@pytest.mark.parametrize(
    ("evaluated", "most"),
    [
        *((lambda b, kink=kink: 2 * min(b, kink), 5) for kink in (8, 20, 100, 300, 3000)),
        *(
            (groups, 4)
            for groups in (lambda b: b // 2, lambda b: -(-b // 3), lambda b: -(-b // 64))
        ),
    ],
)
def test_an_evaluation_set_smaller_than_the_batch_halves_and_a_batch_rounded_up_take_few_traces(
    evaluated, most
):
    script, chosen = with_more(network(3), lambda b: evaluated(b) * 3_000_000), card(20 * GIB)
    _, asked, _ = true_search(chosen, script.trace)
    assert len(asked) <= most


@pytest.mark.parametrize("weight", [4, 400, 40_000])
def test_where_batch_meets_batch_a_third_small_trace_gives_the_quadratic_term(weight):
    script = with_more(network(3), lambda b: weight * b * b, lambda b: weight * (b * (b - 1) // 2))
    chosen = card(20 * GIB)
    conclusion, asked, largest = searched(chosen, script.trace)
    assert asked[:3] == [5, 12, 20] and len(asked) == 4
    assert largest == true_largest(chosen, script.trace, largest) == asked[3]
    assert conclusion.estimate.exact


def test_the_whole_dataset_traced_and_fitting_ends_the_search_though_other_events_happen_there():
    plain, last = network(3), with_more(network(3), lambda b: 1000 * b)
    conclusion, asked, largest = searched(
        card(40 * GIB),
        lambda b: (last if b > 150 else plain).trace(b),
        Limits(dataset_length=200),
    )
    assert asked == [5, 12, 200]
    assert (
        largest,
        conclusion.estimate.limited_by,
        conclusion.notes,
    ) == (
        200,
        "dataset",
        (),
    )


def epochs_of(samples: int, script: Script, after: Script):
    """What `script` does in each step, as long as the epoch has batches left, two at most; then an
    evaluation.
    """

    def trace_of(b: int) -> Trace:
        steps = min(2, -(-samples // b))
        rows = [Malloc(-1, 300 * MIB, "w"), Phase("train")]
        for step in range(steps):
            rows += [
                _moved(row, step) for row in script.trace(b).rows if not isinstance(row, Phase)
            ]
        rows += [
            Phase("eval"),
            *(_moved(row, 9) for row in after.trace(b).rows if not isinstance(row, Phase)),
        ]
        return Trace({}, rows)

    return trace_of


def _moved(row, by: int):
    if isinstance(row, Malloc):
        return row._replace(id=row.id + 10_000 * by)
    return row._replace(id=row.id + 10_000 * by) if isinstance(row, Free) else row


@given(seed=st.integers(0, 10**6), budget=st.integers(2, 30), samples=st.integers(20, 4000))
@settings(max_examples=12, deadline=None)
def test_where_an_epoch_is_shorter_at_large_sizes_the_true_largest_is_named(seed, budget, samples):
    passing = [
        action
        for action in network(seed, layers=4).actions
        if action[0] != "step" and action[1][0] in "atg"
    ]
    after = Script([("malloc", "e", affine(0, 1000)), ("free", "e")])
    trace_of, chosen = epochs_of(samples, Script(passing), after), card(budget * GIB)
    _, asked, largest = true_search(chosen, trace_of)
    assert len(asked) <= MOST_TRACES and largest in asked


def test_where_the_part_that_differs_sets_the_peak_the_limit_is_not_taken_for_proven():
    """In evaluation each sample takes ten times what it takes in training, which the common prefix
    knows nothing of.
    """
    step = Script([("malloc", "a", affine(0, 4_000_000)), ("free", "a")])
    after = Script([("malloc", "e", affine(0, 40_000_000)), ("free", "e")])
    trace_of, chosen = epochs_of(40, step, after), card(20 * GIB)
    true_search(chosen, trace_of)


def test_the_whole_dataset_confirms_no_model_that_its_own_trace_refutes():
    script = Script(
        [
            ("malloc", "a", affine(0, 4000)),
            ("malloc", "e", lambda b: 1_000_000 * min(b, 50)),
            ("free", "e"),
        ]
    )
    conclusion, asked, largest = searched(card(20 * GIB), script.trace, Limits(dataset_length=1000))
    assert (asked, largest) == ([5, 12, 1000], 1000)
    assert (conclusion.estimate.method, conclusion.estimate.exact) == ("peaks", False)


def test_a_curve_shows_what_was_traced_and_not_what_a_model_predicts_there():
    """A larger evaluation from 40 samples on sets the peak; the largest size is that of the data
    set.
    """
    step = Script([("malloc", "a", affine(0, 4_000_000)), ("free", "a")])
    after = Script([("malloc", "e", lambda b: 9_000_000 * b if b > 40 else 1000), ("free", "e")])
    trace_of, chosen = epochs_of(40, step, after), card(20 * GIB)
    conclusion, _, largest = searched(chosen, trace_of, Limits(dataset_length=500))
    curve = {point.batch_size: point.value.value for point in conclusion.estimate.curve}
    assert largest == 500
    assert curve[500] == chosen.device_bytes(chosen.replay(trace_of(500), None).peak)


def accumulating(effective: int):
    """As many micro-batches as fill the effective batch: the order of allocations depends on the
    batch size.
    """

    def trace_of(b: int) -> Trace:
        rows = [Malloc(-1, 300 * MIB, "w")]
        for k in range(-(-effective // b)):
            samples = min(b, effective - k * b)
            rows += [
                Malloc(2 * k, samples * 20_000_000, "a"),
                Malloc(2 * k + 1, samples * 9_000_000, "b"),
            ]
            rows += [Free(2 * k), Free(2 * k + 1)]
        return Trace({}, rows)

    return trace_of


def test_where_the_order_depends_on_the_batch_size_trials_search_for_the_true_largest():
    trace_of, chosen = accumulating(4096), card(20 * GIB)
    _, asked, largest = true_search(chosen, trace_of)
    assert largest in asked and len(asked) <= MOST_TRACES


def test_an_allocation_that_follows_no_rule_takes_no_more_traces_than_any():
    script, chosen = with_more(network(3), lambda b: 7919 * b % 1009 * 9_000), card(20 * GIB)
    conclusion, asked, largest = true_search(chosen, script.trace)
    assert not conclusion.estimate.exact
    assert largest in asked and len(asked) <= MOST_TRACES


def test_sizes_at_which_the_script_fails_between_one_that_fits_and_one_that_does_not_are_named():
    trace_of = accumulating(4096)
    shown_at = lambda size: (  # noqa: E731
        trace_of(size)
        if size % 8 == 0
        else Traced(Outcome.CRASHED, failure="sizes are multiples of 8")
    )
    conclusion, asked, largest = searched(card(2 * GIB), shown_at, Limits(), 64)
    failed = sorted(size for size in asked if size % 8)
    assert largest == 32 and len(failed) > 1
    assert (
        "batch size 32 fits and 64 does not: between them the script itself raised an error at "
        f"{', '.join(map(str, failed))}"
    ) in conclusion.notes


@given(
    limits=st.builds(
        Limits,
        dataset_length=st.one_of(st.none(), st.integers(1, 3000)),
        max_batch_size=st.one_of(st.none(), st.integers(1, 3000)),
    ),
    late=st.one_of(st.none(), st.integers(1, 3000)),
    seed=st.integers(0, 50),
)
@settings(max_examples=20, deadline=None)
def test_a_named_size_obeys_every_limit_also_one_that_the_first_trace_shows(limits, late, seed):
    script, chosen = network(seed, layers=4), card(8 * GIB)
    shown_at = lambda size: completed(script.trace(size), dataset_length=late)  # noqa: E731
    conclusion, asked, largest = searched(chosen, shown_at, limits)
    most = min(
        (n for n in (limits.dataset_length, limits.max_batch_size, late) if n is not None),
        default=10**9,
    )
    assert largest is not None and 1 <= largest <= most and all(size <= most for size in asked[1:])
    assert conclusion.estimate.limited_by == "budget" or largest == most
    assert_near(chosen, script.trace, largest, most)


def test_a_script_that_ignores_the_batch_size_is_recognised():
    script = Script([("malloc", "w", affine(GIB, 0))])
    conclusion, _, _ = searched(card(20 * GIB), script.trace)
    assert conclusion.estimate.ignores_batch_size and conclusion.estimate.limited_by is None
    conclusion, asked, largest = searched(card(20 * GIB), script.trace, Limits(dataset_length=2000))
    assert conclusion.estimate.ignores_batch_size and largest == 2000
    assert 2000 in asked


def test_nothing_is_named_where_not_even_one_sample_fits():
    script = Script([("malloc", "w", affine(100 * GIB, 0))])
    conclusion, asked, largest = searched(card(20 * GIB), script.trace)
    assert largest is None and conclusion.estimate.limited_by == "budget"
    assert conclusion.estimate.nothing_fits and asked[-1] == 1


def test_a_card_that_is_full_at_the_first_size_makes_the_search_go_smaller():
    script, chosen = Script([("malloc", "w", affine(GIB, 6 * GIB))]), card(20 * GIB)
    full = Traced(Outcome.OUT_OF_DEVICE_MEMORY)
    conclusion, asked, largest = searched(chosen, lambda b: full if b >= 4 else script.trace(b))
    assert largest == 3
    assert "batch size 5 ran out of memory" in conclusion.notes
    assert asked[0] == 5 and max(asked[1:]) <= 3


@pytest.mark.parametrize(
    "outcome", [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.UNSUPPORTED, Outcome.PROBE_NOT_LOADED]
)
def test_a_failure_that_is_not_about_memory_ends_the_search(outcome):
    conclusion, asked, largest = searched(card(20 * GIB), lambda size: Traced(outcome))
    assert conclusion.failed is outcome and len(asked) == 1
    assert largest is None and not conclusion.estimate.nothing_fits


def test_a_trace_that_is_cut_off_on_one_card_counts_for_none():
    traces = (network(1).trace(5), Trace({}, [], whole=False))
    conclusion, _, _ = searched(card(20 * GIB), lambda size: completed(*traces))
    assert conclusion.failed is Outcome.CRASHED


@pytest.mark.parametrize(
    "outcome", [Outcome.TIMED_OUT, Outcome.UNSUPPORTED, Outcome.PROBE_NOT_LOADED]
)
def test_a_later_failure_keeps_what_was_found(outcome):
    shown_at = lambda size: network(1).trace(size) if size in (5, 12) else Traced(outcome)  # noqa: E731
    conclusion, asked, largest = searched(card(20 * GIB), shown_at)
    assert conclusion.failed is outcome and len(asked) == 3
    assert largest == 12 and not conclusion.estimate.exact
    assert conclusion.estimate.limited_by not in ("budget", None)


def test_a_size_that_ran_out_of_memory_is_not_followed_by_the_next_smaller_one():
    """Beyond 60 the script holds a hundred times as much for each sample, which no small trace can
    show.
    """
    script = with_more(network(3), lambda b: 100_000 * b + 40_000_000 * max(0, b - 60))
    chosen = card(20 * GIB, capacity=int(19.5 * GIB))
    full = lambda b: chosen.replay(script.trace(b), chosen.capacity_bytes).full is not None  # noqa: E731
    out = Traced(Outcome.OUT_OF_DEVICE_MEMORY)
    _, asked, largest = searched(chosen, lambda b: out if full(b) else script.trace(b))
    assert sum(map(full, asked)) <= 3
    assert largest >= 60, "the search came back from where the card was full to where there is room"
    assert fits(chosen, script.trace(largest))


def test_nothing_is_called_the_largest_where_the_traces_stopped_growing():
    script = with_more(network(3), lambda b: 100_000 * min(b, 40))
    script = Script(
        [
            a if a[0] != "malloc" else (*a[:2], lambda b, size=a[2]: size(min(b, 40)))
            for a in script.actions
        ]
    )
    conclusion, asked, largest = searched(card(20 * GIB), script.trace)
    assert largest is None and conclusion.estimate.limited_by == "not_followed"
    assert not conclusion.estimate.nothing_fits and not conclusion.estimate.ignores_batch_size
    assert "take exactly as much memory" in conclusion.notes[-1] and len(asked) <= 5


@pytest.mark.parametrize(
    ("each", "limited_by"), [(400, "brimful, which tries none above 16,777,216"), (4000, "budget")]
)
def test_a_search_that_ends_where_no_batch_is_as_large_says_that_it_is_no_limit_of_memory(
    each, limited_by
):
    script = Script([("malloc", "a", affine(20 * MIB, each)), ("free", "a")])
    conclusion, _, largest = searched(card(20 * GIB), script.trace)
    assert conclusion.estimate.limited_by == limited_by
    assert fits(card(20 * GIB), script.trace(largest + 1)) is (each == 400)


def test_a_batch_that_is_split_into_small_ones_ends_the_search_at_two_sizes():
    """64 asked, batches of 2, and as many of them as make 64: memory says nothing of the size."""
    script = Script([("malloc", "w", affine(GIB, 0))])
    shown = lambda size: completed(  # noqa: E731
        script.trace(size), dataset_length=4000, samples_per_step=size // 2 * 2, batch=2
    )
    conclusion, asked, largest = searched(card(20 * GIB), shown)
    assert len(asked) == 2 and largest is None and conclusion.estimate.limited_by == "not_followed"


def test_the_whole_data_set_is_a_limit_and_no_sign_that_sizes_are_not_followed():
    script = network(3)
    shown = lambda size: completed(  # noqa: E731
        script.trace(min(size, 12)), dataset_length=12, samples_per_step=min(size, 12)
    )
    conclusion, _, largest = searched(card(20 * GIB), shown)
    assert (largest, conclusion.estimate.limited_by) == (
        12,
        "dataset",
    )


# --- where no model of sizes is confirmed, trials alone show where the edge is ---


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


def test_where_peaks_alone_are_known_and_3_percent_more_fits_the_answer_names_no_edge():
    """Each temporary is larger than the one before: the card reserves all of them, or the largest
    alone where it is full.
    """
    trace_of = of_random_boxes(
        *(lambda b, tenths=tenths: 2 * MIB * tenths * b for tenths in range(10, 18))
    )
    chosen = card(20 * GIB, high=0.03, capacity=20 * GIB - CONTEXT)

    def shown(b: int):
        """What does not get through on the card is cut off there, and shows no peak."""
        is_full = chosen.replay(trace_of(b), chosen.capacity_bytes).full is not None
        return Traced(Outcome.OUT_OF_DEVICE_MEMORY) if is_full else trace_of(b)

    conclusion, sizes = drive(search_largest(chosen, Limits()), shown)
    largest = conclusion.estimate.largest_batch_size
    assert largest == max(sizes) == 90 and len(sizes) == MOST_TRACES
    assert "batch size 90 fits; larger ones were not looked at" in conclusion.notes


def test_a_search_that_ends_before_anything_was_too_large_says_so():
    conclusion, sizes = drive(
        search_largest(card(20 * GIB), Limits()), of_random_boxes(lambda b: b)
    )
    assert len(sizes) == MOST_TRACES and max(sizes) == conclusion.estimate.largest_batch_size
    assert f"batch size {max(sizes):,} fits; larger ones were not looked at" in conclusion.notes
