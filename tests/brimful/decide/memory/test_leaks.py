import re

import pytest

from brimful.decide.audit.findings import findings
from brimful.decide.memory.leaks import memory_that_grows
from tests.brimful.decide.builders import GIB, peak, report, sample

MIB = 1 << 20
EVALUATION = {"eval": 75 * MIB, "eval_seen": 2, "eval_length": 125}


@pytest.mark.parametrize(
    ("growth", "problem", "explanation"),
    [
        (EVALUATION, "75.0 MiB.*2 of 125 batches", "9.01 GiB"),
        ({"eval": 75 * MIB, "eval_seen": 2}, "the trial met 2 batches$", "1,000 more"),
        ({"train": 34 * MIB}, "34.0 MiB", "33.2 GiB"),
    ],
    ids=["an evaluation", "one of unknown length", "steps"],
)
def test_what_keeps_memory_is_shown_with_what_it_comes_to(growth, problem, explanation):
    (advice,) = memory_that_grows(growth, 10 * GIB)
    assert advice.code == "memory-grows" and "does not fit" not in advice.explanation
    assert re.search(problem, advice.problem) and explanation in advice.explanation


@pytest.mark.parametrize(("budget", "fits"), [(13 * GIB, False), (14 * GIB, True)])
def test_an_evaluation_that_does_not_fit_at_its_end_is_marked_so(budget, fits):
    (advice,) = memory_that_grows(EVALUATION, 10 * GIB, 4 * GIB, budget)
    assert ("does not fit" not in advice.explanation) is fits


def test_an_audit_shows_steps_and_evaluations_that_leave_memory():
    met = sample([report(growth={"train": 34 * MIB, **EVALUATION})], peak=peak(10 * GIB))
    (warnings,) = [warning for warning in findings(met, {}) if warning.code == "memory-grows"]
    assert (
        warnings.problem.startswith("Each step leaves 34.0 MiB")
        and "each evaluation batch leaves 75.0 MiB" in warnings.problem
    )


EMBEDDINGS = {"eval": 130 * 1024, "eval_seen": 2, "eval_length": 235}  # of 256 samples


def test_embeddings_that_an_evaluation_keeps_may_all_meet_in_the_end():
    (advice,) = memory_that_grows(EMBEDDINGS, 10 * GIB, evaluation_samples=60_000)
    assert advice.code == "evaluation-collects"
    assert (
        "130 KiB" in advice.problem
        and "2 of 235" in advice.problem
        and "13.4 GiB" in advice.explanation
    )
    large = memory_that_grows(EMBEDDINGS, GIB, evaluation_samples=60_000)
    assert [warning.code for warning in large] == ["memory-grows", "evaluation-collects"]
    met = sample([report(growth=EMBEDDINGS)], peak=peak(10 * GIB))
    assert not [warning for warning in findings(met, {}) if warning.code == "memory-grows"], (
        "an audit shows what grows alone"
    )


@pytest.mark.parametrize(
    ("growth", "peak_bytes", "samples"),
    [
        ({}, GIB, None),
        ({"train": 512, "eval": 512, "eval_seen": 2, "eval_length": 1000}, GIB, None),
        ({"eval": 75 * MIB, "eval_seen": 2, "eval_length": 2}, GIB, None),  # all of it was seen
        ({"eval": 512, "eval_seen": 2}, GIB, None),
        (EMBEDDINGS, 10 * GIB, None),  # nobody knows of how many samples
        ({**EMBEDDINGS, "eval": 4096}, 10 * GIB, 60_000),  # predictions: 16 bytes of each
        ({**EMBEDDINGS, "eval_length": 4}, 10 * GIB, 1000),  # 4 MB in all
        ({**EMBEDDINGS, "eval_length": 2}, 10 * GIB, 60_000),  # seen to its end
    ],
)
def test_what_is_small_beside_the_peak_or_seen_to_its_end_gives_no_warning(
    growth, peak_bytes, samples
):
    assert memory_that_grows(growth, peak_bytes, evaluation_samples=samples) == []
