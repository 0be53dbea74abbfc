"""Values as text."""

from dataclasses import replace

import pytest

from brimful.show.text import (
    ABSENT_TEXT,
    bytes_text,
    cards_text,
    count_text,
    epoch_text,
    interval_text,
    limited_text,
    memory_of,
    reason,
    seconds_cell,
    setting_text,
    settings_text,
    speed_cell,
    speed_text,
    uneven_text,
)
from brimful.values import Epoch, Estimate, Outcome, PhasePeak, Source
from tests.brimful.show import product


def test_what_is_absent_is_a_dash_whatever_it_would_have_been() -> None:
    assert {
        bytes_text(None),
        count_text(None),
        speed_text(None),
        setting_text(None),
        settings_text({}),
    } == {ABSENT_TEXT}
    assert "0" in bytes_text(0) and count_text(0) == "0"


def test_the_interval_of_an_epoch_is_not_laid_to_the_order_of_batches_alone() -> None:
    even = product.predict_fits().prediction
    assert even is not None and even.peak is not None and uneven_text(even) == ""
    text = uneven_text(replace(even, largest_batches_peak=even.peak))
    most = bytes_text(even.peak.device_interval_bytes[1])
    assert f"at most {most} with other orders and all that is uncertain" in text


def test_settings_read_as_a_person_writes_them() -> None:
    values = {"batch_size": 1024, "lr": 3e-4, "amp": True, "name": "a b"}
    assert settings_text(values) == "batch_size 1,024, lr 0.0003, amp yes, name a b"
    assert setting_text(False) == "no"


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (2**30, 2**30, None),
        (None, 2**30, None),
        (2**30, 3 * 2**29, "1.00 to 1.50 GiB"),
    ],
)
def test_an_interval_that_reads_as_one_number_is_none(
    low: int | None, high: int, text: str | None
) -> None:
    assert interval_text(low, high, 2**30) == text


@pytest.mark.parametrize(("low", "high", "text"), [(3.0, 3.0, None), (2.0, 4.0, "2.00 to 4.00")])
def test_so_is_the_interval_of_a_speed(low: float, high: float, text: str | None) -> None:
    assert speed_cell(Estimate(3.0, Source.MEASURED, low, high)).interval == text


def test_a_time_and_its_interval_have_one_unit() -> None:
    step = seconds_cell(Estimate(1.69e-3, Source.PREDICTED, 771e-6, 4.69e-3))
    assert (step.text, step.interval) == ("1.69 ms", "0.771 to 4.69 ms")


@pytest.mark.parametrize(
    ("peak", "asked", "shown"),
    [
        (PhasePeak(1, 2, 3, 4), (), ("device", 3)),
        (PhasePeak(1, 2, 3, 4), ("host",), ("host", 4)),
        (PhasePeak(None, None, None, 7), ("device",), ("host", 7)),
        (PhasePeak(1, 2, None, None), ("host",), ("reserved", 2)),
        (PhasePeak(None, None, None, None), (), None),
        (None, (), None),
    ],
)
def test_a_peak_shows_the_memory_asked_for_else_the_nearest_to_it(
    peak: PhasePeak | None, asked: tuple, shown: tuple[str, int] | None
) -> None:
    assert memory_of(peak, *asked) == shown


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, f"RuntimeError: {product.MESSAGE} (train.py:77 in main)"),
        (
            {"failed_rank": 1},
            f"RuntimeError: {product.MESSAGE} in rank 1 (train.py:77 in main)",
        ),
        (
            {"failure": None, "outcome": Outcome.KILLED, "exit_code": -9},
            "ended by signal 9",
        ),
        ({"failure": None, "exit_code": 3}, "exit code 3"),
        ({"outcome": Outcome.COMPLETED}, ""),
    ],
)
def test_an_execution_that_did_not_complete_has_a_reason(changes: dict, said: str) -> None:
    (crashed,) = product.script_raised().trials
    assert reason(replace(crashed, **changes)) == said


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("dataset", "limited by the length of the dataset"),
        (
            "a failure of the script itself at 512",
            "limited by a failure of the script itself at 512",
        ),
        (None, None),
    ],
)
def test_a_limit_that_is_no_name_of_ours_is_shown_as_it_is(
    limit: str | None, text: str | None
) -> None:
    assert limited_text(limit) == text


@pytest.mark.parametrize(("alone_of", "text"), [(None, ""), (64, " as one of 64 ranks")])
def test_a_prediction_is_for_a_card_or_for_one_rank_of_many(
    alone_of: int | None, text: str
) -> None:
    prediction = replace(product.predict_fits().prediction, alone_of=alone_of)
    assert cards_text(prediction) == "NVIDIA A100-SXM4-40GB" + text


def test_the_time_of_an_epoch_says_what_runs_beside_its_training_where_that_is_much() -> None:
    train_s, evaluation_s = Estimate(3.2, Source.PREDICTED), Estimate(0.4, Source.ASSUMED)
    alone = Epoch(782, 64, 50_030, False, 50_030, train_s, True, None, None)
    steps = (
        "782 steps of 64: 50,030 samples, each once; 3.20 s (predicted, with loading as it is here)"
    )
    assert epoch_text(alone) == steps
    either = epoch_text(replace(alone, steps=0, most_steps=1))
    assert either.startswith("0 or 1 step of 64: ")
    whole = replace(
        alone, evaluated=5003, evaluation_s=evaluation_s, between_s=Estimate(8.0, Source.PREDICTED)
    )
    more = (
        "and 400 ms to evaluate 5,003 (assumed), and 8.00 s of other work on the card before the "
        "next epoch (predicted)"
    )
    assert epoch_text(whole) == f"{steps}, {more}"
    assert epoch_text(replace(alone, between_s=Estimate(0.01, Source.PREDICTED))) == steps
