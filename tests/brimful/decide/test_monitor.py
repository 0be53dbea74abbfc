"""What is left of a training, and what earlier records say of it."""

from dataclasses import replace

import pytest

from brimful.decide.monitor import expected, time_left
from brimful.values import Answer, Estimate, Outcome, Source, TrialKind, TrialResult
from brimful_inside.wire import LoaderSeen, Report
from tests.brimful.show import product


def sample(length: int | None = 100, batches: int = 1, step_s: float | None = 2.0) -> TrialResult:
    """A training of `length` batches an epoch, `batches` of them a step of `step_s`."""
    loader = LoaderSeen(
        *("train", 8, 800, length, "RandomSampler", 800, False),
        *(0, False, 10, 80, []),
    )
    report = Report(0, 1, "cpu", None, "2.9", "running", 10, 0)
    report = replace(report, loaders=[loader], micro_batches_per_step=[batches] * 10)
    return replace(
        product.trial_result(8, TrialKind.AUDIT),
        outcome=Outcome.COMPLETED,
        reports=(report,),
        step_s=(step_s,) if step_s is not None else (),
    )


@pytest.mark.parametrize(
    ("words", "steps", "left_s", "of"),
    [
        ("", 30, 140, "the epoch"),
        ("", 130, 140, "the epoch"),
        ("--epochs 3", 130, 340, "--epochs 3"),
        ("--num-train-epochs=2", 0, 400, "--num-train-epochs 2"),
        ("trainer.max_epochs=2", 0, 400, "trainer.max_epochs 2"),
        ("--max-steps 500", 130, 740, "--max-steps 500"),
        ("--max_iters 500 --epochs 9", 130, 740, "--max_iters 500"),
        ("--max-train-steps 500", 130, 740, "--max-train-steps 500"),
        ("--epochs many", 30, 140, "the epoch"),
        ("--warmup-steps 7 --steps 9", 30, 140, "the epoch"),
        ("--epochs 1", 100, 0, "--epochs 1"),
    ],
)
def test_the_time_left_is_to_what_the_command_names_else_to_the_end_of_the_epoch(
    words, steps, left_s, of
):
    left = time_left(("python", "train.py", *words.split()), steps, sample())
    assert left == Estimate(left_s, Source.ESTIMATE, note=of)


def test_accumulated_batches_make_fewer_steps_of_an_epoch():
    assert time_left(("--epochs", "2"), 0, sample(batches=4)).value == 2 * 25 * 2.0


@pytest.mark.parametrize(
    ("words", "steps", "seen"),
    [
        ("--epochs 3", 1, sample(length=None)),
        ("", 1, sample(length=None)),
        ("--max-steps 9", 1, sample(step_s=None)),
        ("--max-steps 9", 10, sample()),  # it means something else by that number
        ("--epochs 1", 101, sample()),
    ],
)
def test_where_something_is_not_known_no_time_is_named(words, steps, seen):
    assert time_left(words.split(), steps, seen) is None


def test_a_plan_says_what_it_measured_of_the_size_in_force_and_nothing_of_another():
    record = product.ALL["tune-cpu"]()
    row = next(row for row in record.plan.sizes if row.peak_bytes and row.samples_per_s)
    seen = expected(record, row.batch_size)
    assert seen["expected_peak_bytes"] == replace(row.peak_bytes, note="by tune")
    assert seen["expected_samples_per_s"] == replace(row.samples_per_s, note="by tune")
    assert expected(record, 7919) == {}


def test_a_prediction_says_the_peak_on_the_device_with_its_interval():
    record = product.ALL["predict-fits"]()
    prediction = record.prediction
    bare = replace(record, prediction=replace(prediction, rows=()))
    peak = expected(bare, prediction.batch_size)["expected_peak_bytes"]
    assert (peak.value, peak.low, peak.high) == (
        prediction.peak.device_bytes,
        *prediction.peak.device_interval_bytes,
    )
    assert (peak.source, peak.note) == (prediction.peak.source, "by predict")
    other = replace(
        prediction,
        rows=(Answer({"batch_size": 5}, peak_bytes=Estimate(1.0, Source.PREDICTED)),),
        rows_of="sizes",
    )
    assert expected(replace(record, prediction=other), 5)["expected_samples_per_s"] is None
    assert expected(product.ALL["audit"](), 64) == {}
