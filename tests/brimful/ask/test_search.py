"""What predict and tune on an imaginary card share."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from brimful.ask.epochs import Epochs
from brimful.ask.search import _over_an_epoch, search_notes
from brimful.decide.memory.search_traced import Traced, search_largest
from brimful.decide.memory.uneven import MOST_RISE, epochs_of
from brimful.values import Command, Device, Failure, Limits, Outcome, Trial, TrialKind, TrialResult
from tests.brimful.decide.memory.test_uneven import WEIGHTS, training
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


@pytest.mark.parametrize(
    ("room", "limits", "fails_from", "limit"),
    [
        (900 << 20, Limits(), None, "budget"),
        (1 << 40, Limits(), None, f"brimful, which tries none above {10 * MOST_RISE}"),
        (1 << 40, Limits(dataset_length=64), None, "dataset"),
        (1 << 40, Limits(), 50, "the script itself, which fails at batch size "),
    ],
)
def test_what_ends_the_search_over_an_epoch_is_named(monkeypatch, room, limits, fails_from, limit):
    """Where the batches of an epoch are as drawn, larger ones fit than of the largest samples."""
    monkeypatch.setattr("brimful.decide.memory.uneven.MOST_STEPS", 60)
    epochs, failed = {}, {}

    def learn_epochs(size, model):
        if fails_from is not None and size >= fails_from:
            failure = Failure("crashed", "ValueError", "many", "", "train.py:9", "train", 0, False)
            trial = Trial(Command(("train",)), {}, Device("cpu", "cpu"), TrialKind.TRACE)
            epochs[size] = ()
            failed[size] = TrialResult(
                trial=trial, outcome=Outcome.CRASHED, failure=failure, duration_s=1.0, folder=""
            )
        else:
            epochs[size] = epochs_of(training([5, 7, 6, 7, 6, 5], size), None)

    trials = SimpleNamespace(
        in_batches=True,
        limits=lambda: limits,
        session=None,
        unknown="batch_size",
    )
    uneven = Epochs(trials, epochs, {10: None}, failed)
    view = SimpleNamespace(
        trials=trials,
        is_read=False,
        learn_epochs=learn_epochs,
        uneven=uneven,
        epochs=lambda size, orders: epochs[size][:orders],
        card=card(room),
        fixed_sizes=frozenset({WEIGHTS, 2 * WEIGHTS}),
    )
    script = Script([("malloc", "w", affine(0, GIB))])
    conclusion, _ = drive(search_largest(card(12 * GIB), Limits()), script.trace)
    estimate = replace(conclusion.estimate, largest_batch_size=10, limited_by="budget")
    found = _over_an_epoch(view, replace(conclusion, estimate=estimate)).estimate
    assert found.limited_by.startswith(limit), found.limited_by
    assert found.largest_batch_size > 10
