"""What a run goes on with after it ran out of memory: smaller each time, as known from trials, the
effective batch kept.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.codec import SCHEMA
from brimful.decide.run.smaller_batch_size import FittingSizes, Size, fitting_sizes, next_smaller
from brimful.values import (
    Attempt,
    Budget,
    Command,
    Device,
    EffectiveSetting,
    MemoryEstimate,
    Opened,
    Outcome,
    PhasePeak,
    Record,
    Run,
    RunStarted,
    Source,
    Trial,
    TrialKind,
    TrialResult,
)
from tests.brimful.measure.helper import REPORT

CPU = Device("cpu", "cpu")

sizes = st.integers(1, 10**6)
knowns = st.builds(
    lambda ran, largest: FittingSizes(tuple(sorted(ran)), largest),
    st.sets(sizes, max_size=6),
    st.none() | sizes,
)


def descend(start, known, effective=None):
    """All sizes after `start`, each for the case that the one before it ran out of memory; a run
    asks for them one by one.
    """
    size = next_smaller(start, known, effective)
    while size is not None:
        yield size
        size = next_smaller(size.batch_size, known, effective)


@given(sizes, knowns, st.none() | st.integers(1, 10**6))
def test_sizes_fall_to_one_in_few_attempts_and_then_end(start, known, effective):
    attempts = list(descend(start, known, effective))
    assert effective is not None or all(found.accumulation is None for found in attempts)
    found = [size.batch_size for size in attempts]
    assert all(later < earlier for earlier, later in zip([start, *found], found, strict=False))
    assert found[-1] == 1 if start > 1 else found == []
    assert len(found) <= 60  # 3/4 each time: log(10**6) / log(4/3) = 48


@given(st.integers(2, 10**4), st.integers(1, 64), knowns)
def test_an_effective_batch_stays_and_where_it_cannot_it_stays_near(size, accumulation, known):
    effective = size * accumulation
    for found in descend(size, known, effective):
        assert found.accumulation is not None and found.accumulation >= 1
        assert abs(found.effective_batch - effective) <= found.batch_size / 2
        if effective % found.batch_size == 0:
            assert found.effective_batch == effective


NEAR = "the largest size at least a tenth smaller that ran before"


@pytest.mark.parametrize(
    ("failed", "known", "effective", "expected"),
    [
        (1, FittingSizes(ran=(1,)), 64, None),  # there is nothing below one
        (
            512,
            FittingSizes((64, 256, 384, 500)),
            None,
            Size(384, None, f"{NEAR}; 512 ran out of memory", True),
        ),
        (
            512,
            FittingSizes((64, 256, 384)),
            None,
            Size(384, None, f"{NEAR}; 512 ran out of memory", True),
        ),
        (
            900,
            FittingSizes((64, 500)),
            900,
            Size(
                450,
                2,
                f"the largest up to 500 that divides the 900 samples of an update; 500 is "
                f"{NEAR}; 900 ran out of memory",
            ),
        ),
        (
            900,
            FittingSizes(),
            900,
            Size(
                300,
                3,
                "the largest up to 448 that divides the 900 samples of an update; 448 is half of "
                "900, rounded down; 900 ran out of memory",
            ),
        ),
    ],
)
def test_a_size_that_ran_comes_before_a_guess_and_one_rounded_to_a_divisor_is_neither(
    failed, known, effective, expected
):
    assert next_smaller(failed, known, effective) == expected


@pytest.mark.parametrize(
    ("failed", "known", "effective", "size", "accumulation", "why"),
    [
        (4096, FittingSizes((64, 1000), 1024), None, 1024, None, "found to fit"),
        (100, FittingSizes((100,), 100), None, 72, None, "three quarters"),
        (100, FittingSizes(), None, 48, None, "half"),
        (
            64,
            FittingSizes(largest=0),
            64,
            32,
            2,
            "half",
        ),  # nothing fits, by the estimate: no size to go to
        (97, FittingSizes(), 97, 48, 2, "half"),  # no divisor is near
    ],
)
def test_the_next_size_goes_by_what_is_known(failed, known, effective, size, accumulation, why):
    found = next_smaller(failed, known, effective)
    assert (
        found is not None
        and (found.batch_size, found.accumulation) == (size, accumulation)
        and why in found.why
    )


def sample(size: int, outcome: Outcome, peak: int) -> TrialResult:
    trial = Trial(Command(("t",)), {"batch_size": size}, Device("cpu", "cpu"), TrialKind.MEMORY)
    seen = PhasePeak(None, None, None, peak)
    return TrialResult(trial=trial, outcome=outcome, peak=seen, duration_s=1.0, folder="t")


def record(verb="tune", trials=(), memory=None, budget=None, attempts=()):
    opened = Opened(SCHEMA, "r", verb, (), Command(("t",)), CPU, None, 0.0, budget)
    run = Run(RunStarted("command", "", 10, ()), tuple(attempts), None) if attempts else None
    return Record("folder", opened, tuple(trials), memory=memory, run=run)


def attempt(size: int, outcome: Outcome, steps: int = 5) -> Attempt:
    return Attempt(
        number=1,
        reports=(REPORT,),
        settings=(EffectiveSetting("batch_size", size, size, "", Source.MEASURED),),
        argv=("t",),
        steps=steps,
        outcome=outcome,
        duration_s=1.0,
        folder="a",
        environment={},
        resumed=None,
        samples=None,
        started_unix_s=0.0,
    )


def estimate(largest: int) -> MemoryEstimate:
    return MemoryEstimate("host", "peaks", False, None, None, None, (), (), largest, "budget")


def test_only_sizes_that_ran_within_the_budget_count_as_known():
    budget = Budget(100, 200, 150, "host", "")
    samples = [
        sample(8, Outcome.COMPLETED, 50),
        sample(16, Outcome.COMPLETED, 101),
        sample(32, Outcome.OUT_OF_HOST_MEMORY, 90),
    ]
    tuned = record(trials=samples, memory=estimate(80), budget=budget)
    assert fitting_sizes([tuned]) == FittingSizes((8,), 80)
    assert fitting_sizes([record(trials=samples)]) == FittingSizes((8, 16))
    assert fitting_sizes([tuned], "eval_batch_size") == FittingSizes()
    of_lengths = replace(estimate(4096), unknown="max_length")
    assert fitting_sizes([record("predict", memory=of_lengths)]) == FittingSizes()


def test_sizes_of_earlier_runs_count_and_those_of_predicted_trials_do_not():
    ends = (Outcome.COMPLETED, Outcome.OUT_OF_HOST_MEMORY, Outcome.CRASHED)
    ran = record(
        "run", attempts=[attempt(size, end) for size, end in zip((12, 48, 24), ends, strict=True)]
    )
    nothing = record("run", attempts=[attempt(40, Outcome.COMPLETED, steps=0)])
    predicted = record("predict", [sample(64, Outcome.COMPLETED, 1)], estimate(20))
    known = fitting_sizes([nothing, ran, predicted, record(memory=estimate(99))])
    assert (known.ran, known.largest, known.found) == ((12,), 20, "predicted")
    found = next_smaller(64, known)
    assert found is not None and (found.batch_size, found.ran) == (20, False)
    assert found.why == "the largest that was predicted to fit; 64 ran out of memory"
