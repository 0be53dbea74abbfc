import re

import pytest

from brimful.decide.audit.findings import findings
from brimful.decide.memory.leaks import (
    LONG_TRAINING,
    Growth,
    evaluation_collects,
    growths,
    memory_that_grows,
)
from brimful_inside.simulator.program import Program
from tests.brimful.decide.builders import GIB, peak, report, sample

MIB = 1 << 20
EVALUATION = Growth("eval", 75 * MIB, 2, 125)


def joining(nbytes, phase="eval"):
    """The program of a run that joins so many bytes in a phase."""
    events = (("phase", phase), ("malloc", "aten.mm", None, 0), ("malloc", "aten.cat", None, 0))
    return Program(events, (10 * nbytes, nbytes), ((), ()))


@pytest.mark.parametrize(
    ("growth", "text"),
    [
        (EVALUATION, "each evaluation batch leaves 75.0 MiB.*: the evaluation keeps 9.16 GiB$"),
        (Growth("eval", 75 * MIB, 2, 125, True), "9.16 GiB, and 18.3 GiB.* joined$"),
        (Growth("eval", 64 * MIB, 2, None), "64.0 MiB more on the card; .* full at batch 162 "),
        (Growth("train", 32 * MIB, 4, None), "each step leaves 32.0 MiB.* full at step 324 unless"),
        (Growth("train", 32 * MIB, 4, 100), r"keeps 3.12 GiB; .* full at step 324 \(epoch 4\)"),
    ],
    ids=["evaluation", "joined", "evaluation of unknown length", "steps", "steps of an epoch"],
)
def test_growth_says_what_it_comes_to_or_when_the_card_is_full(growth, text):
    advice = memory_that_grows(growth, 10 * GIB, 20 * GIB)
    assert advice is not None and advice.code == "memory-grows"
    assert re.search(text, advice.problem), advice.problem


CYCLES = {"cycles": 8 * MIB, "cycles_made": 7}


@pytest.mark.parametrize(
    ("more", "steps", "budget", "code", "text", "more_bytes"),
    [
        ({}, None, 2 * GIB, "memory-grows", "does not collect; the card is full at step 129 ", 0),
        ({}, 100, 2 * GIB, "memory-grows", "an epoch keeps 800 MiB", 99 * 8 * MIB),
        (
            {"cycles_alive": 50},
            None,
            2 * GIB,
            "memory-in-cycles",
            "400 MiB before they are coll",
            49,
        ),
        ({"cycles_alive": 50}, 20, 2 * GIB, "memory-grows", "an epoch keeps 160 MiB", 19 * 8 * MIB),
        ({"cycles_alive": 500}, None, 2 * GIB, "memory-grows", "full at step 129 unless", 499),
    ],
    ids=["off", "off, an epoch", "collected", "a short epoch", "collected too late"],
)
def test_cycles_are_kept_until_they_are_collected(more, steps, budget, code, text, more_bytes):
    (growth,) = growths({**CYCLES, **more}, (4, steps))
    advice = memory_that_grows(growth, GIB, budget)
    assert advice is not None and advice.code == code
    assert "in reference cycles" in advice.problem and text in advice.problem
    assert growth.more_bytes in (more_bytes, more_bytes * 8 * MIB)


def test_what_the_end_of_an_evaluation_holds_counts_the_batches_not_met():
    assert EVALUATION.more_bytes == 123 * 75 * MIB
    assert Growth("eval", 75 * MIB, 2, 62.5, True).more_bytes == 121 * 75 * MIB
    assert Growth("train", 75 * MIB, 2, None).more_bytes == 0


@pytest.mark.parametrize(
    ("program", "is_joined"),
    [(joining(290 * MIB), True), (joining(100 * MIB), False), (joining(290 * MIB, "train"), False)],
)
def test_an_evaluation_that_joins_most_of_what_it_keeps_holds_it_twice(program, is_joined):
    read = {"eval": 75 * MIB, "eval_seen": 4, "eval_length": 125}
    assert growths(read, programs=[program]) == [
        Growth("eval", 75 * MIB, 4, 125, is_joined),
    ]


def test_an_audit_shows_steps_and_evaluations_that_leave_memory():
    growth = {"train": 34 * MIB, "eval": 75 * MIB, "eval_seen": 2, "eval_length": 125}
    met = sample([report(growth=growth)], peak=peak(10 * GIB))
    (warnings,) = [warning for warning in findings(met, {}) if warning.code == "memory-grows"]
    assert (
        warnings.problem.startswith("Each step leaves 34.0 MiB")
        and "each evaluation batch leaves 75.0 MiB" in warnings.problem
    )


EMBEDDINGS = Growth("eval", 130 * 1024, 2, 235)  # of 256 samples


def test_embeddings_that_an_evaluation_keeps_may_all_meet_in_the_end():
    advice = evaluation_collects(EMBEDDINGS, 10 * GIB, 60_000)
    assert advice is not None
    assert "130 KiB" in advice.problem and "2 of 235" in advice.problem
    assert "13.4 GiB" in advice.explanation


@pytest.mark.parametrize(
    ("each_bytes", "met", "number", "samples"),
    [
        (130 * 1024, 2, 235, None),  # nobody knows of how many samples
        (4096, 2, 235, 60_000),  # predictions: 16 bytes of each
        (130 * 1024, 2, 4, 1000),  # 4 MB in all
        (130 * 1024, 2, 2, 60_000),  # seen to its end
    ],
)
def test_an_evaluation_whose_samples_cannot_meet_or_were_seen_gives_no_warning(
    each_bytes, met, number, samples
):
    assert evaluation_collects(Growth("eval", each_bytes, met, number), 10 * GIB, samples) is None


@pytest.mark.parametrize(
    "growth",
    [
        Growth("train", 512, 2, 1000),
        Growth("train", 512, 2, None),  # a number a step: full after more steps than trainings have
        Growth("eval", 512, 2, 1000),
        Growth("eval", 75 * MIB, 2, 2),  # all of it was seen
    ],
)
def test_what_is_small_beside_the_peak_or_seen_to_its_end_gives_no_warning(growth):
    room = 512 * LONG_TRAINING + GIB
    assert memory_that_grows(growth, GIB, GIB + room) is None
