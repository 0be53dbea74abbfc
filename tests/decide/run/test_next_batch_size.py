"""What a run goes on with after it ran out of memory: smaller each time, as known from trials, the effective batch kept."""

from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.run.next_batch_size import Known, Size, known_from, next_smaller
from brimful.values import Budget, Command, Device, MemoryEstimate, Outcome, PhasePeak, Trial, TrialKind, TrialResult

sizes = st.integers(1, 10**6)
knowns = st.builds(
    lambda ran, largest: Known(tuple(sorted(ran)), largest), st.sets(sizes, max_size=6), st.none() | sizes
)  # fmt: skip


def descend(start, known, effective=None):
    """All sizes after `start`, each for the case that the one before it ran out of memory; a run asks for them one by one."""
    size = next_smaller(start, known, effective)
    while size is not None:
        yield size
        size = next_smaller(size.batch_size, known, effective)


@given(sizes, knowns, st.none() | st.integers(1, 10**6))
def test_sizes_fall_to_one_in_few_attempts_and_then_end(start, known, effective):
    found = [size.batch_size for size in descend(start, known, effective)]
    assert all(later < earlier for earlier, later in zip([start, *found], found, strict=False))
    assert found[-1] == 1 if start > 1 else found == []
    assert len(found) <= 60  # 3/4 each time: log(10**6) / log(4/3) = 48


@given(st.integers(2, 10**4), st.integers(1, 64), knowns)
def test_an_effective_batch_stays_and_where_it_cannot_it_stays_near(size, accumulation, known):
    effective = size * accumulation
    for found in descend(size, known, effective):
        assert found.accumulation is not None
        assert found.accumulation >= 1
        assert abs(found.effective_batch - effective) <= found.batch_size / 2
        if effective % found.batch_size == 0:
            assert found.effective_batch == effective


@given(sizes, knowns)
def test_a_command_without_accumulation_is_given_none(size, known):
    assert all(found.accumulation is None for found in descend(size, known))


@given(st.integers(1, 16), st.integers(0, 10))
def test_powers_of_two_keep_their_effective_batch_exactly_all_the_way_down(accumulation, power):
    effective = accumulation * 2**power
    assert all(found.effective_batch == effective for found in descend(2**power, Known(), effective))


def test_the_next_size_that_ran_in_a_trial_comes_before_a_guess():
    assert next_smaller(512, Known(ran=(64, 256, 384, 500))) == Size(
        384, None, "the largest size at least a tenth smaller that ran in a trial; 512 ran out of memory", ran=True
    )
    assert next_smaller(512, Known(ran=(64, 256, 384))) == Size(
        384, None, "the next smaller size that ran in a trial; 512 ran out of memory", ran=True
    )


def test_a_size_that_was_rounded_to_a_divisor_is_not_named_as_run_or_as_a_half():
    tried = next_smaller(900, Known(ran=(64, 500)), effective=900)
    assert tried == Size(
        450,
        2,
        "the largest up to 500 that divides the 900 samples of an update; "
        "500 is the next smaller size that ran in a trial; 900 ran out of memory",
        ran=False,
    )
    halved = next_smaller(900, Known(), effective=900)
    assert halved == Size(
        300,
        3,
        "the largest up to 448 that divides the 900 samples of an update; "
        "448 is half of 900, rounded down; 900 ran out of memory",
    )


@given(st.integers(2, 10**4), knowns)
def test_what_is_named_as_run_or_as_half_is_so(failed, known):
    found = next_smaller(failed, known)
    assert found is not None
    assert found.ran or ("size that ran in a trial" not in found.why and "smaller that ran in a trial" not in found.why)
    for word, share in (("half", 1 / 2), ("three quarters", 3 / 4)):
        if found.why.startswith(word):
            exact = failed * share
            assert found.batch_size < exact if ", rounded down;" in found.why else found.batch_size == exact


def test_a_size_beyond_what_was_found_to_fit_goes_to_that():
    found = next_smaller(4096, Known(ran=(64, 1000), largest=1024))
    assert found is not None and found.batch_size == 1024


def test_a_planned_size_that_ran_in_a_trial_loses_a_quarter_and_an_unknown_one_half():
    near, unknown = next_smaller(100, Known(ran=(100,), largest=100)), next_smaller(100, Known())
    assert near is not None and (near.batch_size, "three quarters" in near.why) == (72, True)
    assert unknown is not None and (unknown.batch_size, "half" in unknown.why) == (48, True)


def test_an_estimate_that_nothing_fits_is_no_size_to_go_to():
    found = next_smaller(64, Known(largest=0), 64)
    assert found is not None and (found.batch_size, found.accumulation) == (32, 2)


def test_there_is_nothing_below_one():
    assert next_smaller(1, Known(ran=(1,)), effective=64) is None


def test_a_size_without_a_divisor_nearby_is_kept_nearly():
    found = next_smaller(97, Known(), effective=97)
    assert found is not None
    assert (found.batch_size, found.accumulation, found.effective_batch) == (48, 2, 96)


def sample(size: int, outcome: Outcome, peak: int) -> TrialResult:
    trial = Trial(Command(("t",)), {"batch_size": size}, Device("cpu", "cpu"), TrialKind.MEMORY)
    seen = PhasePeak(None, None, None, peak)
    return TrialResult(trial=trial, outcome=outcome, peak=seen, duration_s=1.0, folder="t")


def test_only_sizes_that_ran_within_the_budget_count_as_known():
    budget = Budget(100, 200, 150, "host", "")
    estimate = MemoryEstimate("host", "peaks", False, None, None, None, (), (), 80, "budget")
    samples = [sample(8, Outcome.COMPLETED, 50), sample(16, Outcome.COMPLETED, 101), sample(32, Outcome.OUT_OF_HOST_MEMORY, 90)]
    assert known_from(samples, budget, estimate) == Known((8,), 80)
    assert known_from(samples, None, None) == Known((8, 16))
    assert known_from(samples, budget, estimate, "eval_batch_size") == Known()
