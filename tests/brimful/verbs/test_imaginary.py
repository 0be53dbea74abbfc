"""What predict and tune on an imaginary card share."""

from dataclasses import replace

import pytest

from brimful.decide.memory.search_traced import Traced, search_largest
from brimful.values import Limits, Outcome
from brimful.verbs.imaginary import search_notes
from tests.brimful.decide.programs import GIB, Script, affine, card, drive


@pytest.mark.parametrize(
    ("method", "explanation"),
    [("extrapolated", ""), ("peaks", "brimful takes the answer from trials")],
)
def test_a_note_of_the_search_says_that_the_answer_rests_on_trials_only_where_it_does(
    method, explanation
):
    script = Script([("malloc", "w", affine(GIB, 6 * GIB))])
    full = Traced(Outcome.OUT_OF_DEVICE_MEMORY)
    conclusion, _ = drive(
        search_largest(card(20 * GIB), Limits()),
        lambda size: full if size >= 4 else script.trace(size),
    )
    notes = search_notes(replace(conclusion, estimate=replace(conclusion.estimate, method=method)))
    assert [advice.problem for advice in notes] == ["batch size 5 ran out of memory"]
    assert all(
        bool(explanation) == bool(advice.explanation) and advice.explanation.startswith(explanation)
        for advice in notes
    )
