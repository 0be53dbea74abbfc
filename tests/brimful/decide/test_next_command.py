"""What to type after a prediction."""

from dataclasses import replace

import pytest

from brimful.decide.next_command import after_prediction
from brimful.values import Command, Place, Prediction
from tests.brimful.show import product

FLAG = Command(("python", "train.py", "--batch-size", "{batch_size}"))
PLACE = Place("script", "train.py", 3, 13, 64, "batch_size = 64", "train.py:9")
INSIDE = Command(("python", "train.py"), places={"batch_size": PLACE})


def fits() -> Prediction:
    value = product.predict_fits().prediction
    return replace(value, speed=replace(value.speed, knee_batch_size=512))


def line(prediction: Prediction, command: Command = FLAG, is_open: bool = False) -> str | None:
    found = after_prediction(
        command, prediction, is_open, lambda size: {"batch_size": size} if size else {}
    )
    return None if found is None else found.line


def test_a_size_that_was_asked_for_and_fits_is_tuned_next() -> None:
    assert line(fits()) == "brimful tune -- python train.py --batch-size 64"
    assert line(fits(), INSIDE) == "brimful tune --set batch_size=64 -- python train.py"


def test_where_the_size_was_left_open_the_knee_is_taken_and_the_largest_where_none_is_known() -> (
    None
):
    assert line(fits(), is_open=True) == "python train.py --batch-size 512"
    unknown = replace(fits(), speed=None)
    assert (
        line(unknown, is_open=True) == f"python train.py --batch-size {unknown.largest_batch_size}"
    )
    assert (
        line(replace(unknown, batch_size=32, largest_batch_size=256), INSIDE, is_open=True)
        == "brimful run --set batch_size=256 -- python train.py"
    )
    assert (
        line(fits(), INSIDE, is_open=True) == "brimful run --set batch_size=512 -- python train.py"
    )


def test_where_the_size_does_not_fit_the_largest_that_does_is_named() -> None:
    value = product.predict_oom().prediction
    value = replace(value, what_if=None)
    assert line(value) == "python train.py --batch-size 1713"
    assert line(replace(value, largest_batch_size=None)) is None


def test_an_accumulation_that_was_advised_stays_in_what_comes_next() -> None:
    value = product.predict_oom().prediction
    assert value.what_if.remedies[-1].code == "accumulation-2"
    after = after_prediction(FLAG, value, False, lambda size: {"batch_size": size} if size else {})
    assert (after.line, after.batch_size) == ("python train.py --batch-size 1500", 1500)
    assert after.why == (
        "1,500 a batch; accumulate 2 in the script for 3,000 an update; predicted 30.7 GiB of "
        "35.5 GiB, 299,000 samples/s"
    )
    words = ("python", "train.py", "--batch-size", "{batch_size}", "--accum", "3")
    accumulates = Command(words, given={"accumulation": 3})
    assert line(value, accumulates) == "python train.py --batch-size 1500 --accum 6"


def test_a_change_that_fits_what_was_asked_is_named_beside_the_largest_without_it() -> None:
    value = product.predict_oom().prediction
    half = replace(value.what_if.remedies[-1], code="mixed-precision", what="mixed precision")
    value = replace(value, what_if=replace(value.what_if, remedies=(half,)))
    after = after_prediction(FLAG, value, False, lambda size: {"batch_size": size} if size else {})
    assert after is not None and after.line == "python train.py --batch-size 1713"
    assert after.why == (
        "1,713: the largest batch size that fits as the script is; with mixed precision 3,000 "
        "does; predicted 34.9 GiB of 35.5 GiB, 341,000 samples/s"
    )


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
