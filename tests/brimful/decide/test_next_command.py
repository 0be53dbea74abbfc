"""What to type after a prediction."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from brimful.decide.next_command import after_prediction
from brimful.show.prediction_facts import prediction_facts
from brimful.values import (
    Answer,
    Command,
    Estimate,
    NextCommand,
    Place,
    Prediction,
    Source,
    Verdict,
)
from tests.brimful.show import product

FLAG = Command(("python", "train.py", "--batch-size", "{batch_size}"))
PLACE = Place("script", "train.py", 3, 13, 64, "batch_size = 64", "train.py:9")
INSIDE = Command(("python", "train.py"), places={"batch_size": PLACE})


def fits() -> Prediction:
    value = product.predict_fits().prediction
    return replace(value, speed=replace(value.speed, knee_batch_size=512))


def spills() -> Prediction:
    return replace(product.predict_oom().prediction, what_if=None)


def line(prediction: Prediction, command: Command = FLAG, is_open: bool = False) -> str | None:
    found = after_prediction(
        command, prediction, is_open, lambda size: {"batch_size": size} if size else {}
    )
    return None if found is None else found.line


@pytest.mark.parametrize(
    ("of", "changes", "command", "is_open", "typed"),
    [
        (fits, {}, FLAG, False, "brimful tune -- python train.py --batch-size 64"),
        (fits, {}, INSIDE, False, "brimful tune --set batch_size=64 -- python train.py"),
        (fits, {}, FLAG, True, "python train.py --batch-size 512"),
        (fits, {}, INSIDE, True, "brimful run --set batch_size=512 -- python train.py"),
        (fits, {"speed": None}, FLAG, True, "python train.py --batch-size 4096"),
        (
            fits,
            {"speed": None, "largest_batch_size": 256, "largest_with_a_step": 256},
            INSIDE,
            True,
            "brimful run --set batch_size=256 -- python train.py",
        ),
        (
            fits,
            {"speed": None, "largest_with_a_step": 333},
            FLAG,
            True,
            "python train.py --batch-size 333",
        ),
        (spills, {}, FLAG, False, "python train.py --batch-size 1733"),
        (spills, {"largest_batch_size": None}, FLAG, False, None),
    ],
)
def test_what_fits_is_tuned_left_open_the_knee_or_the_largest_is_taken_and_else_what_fits_is_named(
    of: Callable[[], Prediction], changes: dict, command: Command, is_open: bool, typed: str | None
) -> None:
    assert line(replace(of(), **changes), command, is_open) == typed


def test_a_size_with_far_fewer_updates_an_epoch_says_so_and_one_with_more_does_not() -> None:
    def learning(size: int, updates: dict[int, float]) -> str:
        rows = tuple(
            Answer(
                {"batch_size": at},
                Verdict.FITS,
                updates_per_epoch=Estimate(number, Source.PREDICTED),
            )
            for at, number in updates.items()
        )
        value = replace(
            fits(),
            batch_size=64,
            rows=rows,
            rows_of="sizes",
            next_command=NextCommand("", "largest", size),
        )
        return {fact.name: fact.cell.text for fact in prediction_facts(value)}.get("learning", "")

    assert learning(4096, {64: 313, 4096: 1}).startswith("1 update an epoch instead of 313")
    assert not learning(96, {64: 313, 96: 209}) and not learning(16, {64: 313, 16: 1250})


def test_an_accumulation_that_was_advised_stays_in_what_comes_next() -> None:
    """How it is said stands in the golden screens."""
    value = product.predict_oom().prediction
    assert value.what_if.remedies[-1].code == "accumulation-2"
    words = ("python", "train.py", "--batch-size", "{batch_size}", "--accum", "3")
    accumulates = Command(words, given={"accumulation": 3})
    assert line(value, accumulates) == "python train.py --batch-size 1500 --accum 6"


@pytest.mark.parametrize(
    "changes",
    [
        {"ignores_batch_size": True},
        {"limited_by": "not_followed"},
        {"in_force": 16},
        {"batch_size": None},
    ],
)
def test_where_the_script_trains_on_another_size_an_audit_shows_why(changes: dict) -> None:
    # An audit sets nothing in a script: it shows the command as it stands.
    assert line(replace(fits(), **changes), INSIDE) == "brimful audit -- python train.py"
