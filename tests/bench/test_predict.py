"""The bench's figures, from made rows; the trials themselves are tested with the imaginary GPU."""

import json
import random

import pytest

from bench import predict
from bench.scripts.mlp import widths
from brimful.decide.memory.intervals import Evidence
from brimful.measure.gpus import find_gpu, to_card
from brimful_inside.simulator import workspaces

MIB = 1 << 20
ROW = {"input_size": "100", "output_size": "10", "depth": "2", "architecture": "uniform"}
ROW |= {"batch_size": "64", "device_peak_mib": "1500"}


def made_lines(count: int, context_mib: int, spread_mib: int) -> list[dict]:
    source = random.Random(1)
    measured = [
        (size, context_mib + size + source.randint(-spread_mib, spread_mib))
        for size in range(10, 50 * count, 50)
    ]
    return [
        {"device_peak_mib": peak, "reserved_bytes": size * MIB, "seconds": 2.0}
        for size, peak in measured
    ]


def test_the_context_is_found_and_the_catalogues_own_is_judged_beside_it(
    capsys: pytest.CaptureFixture[str],
):
    result = predict.judge(made_lines(60, 1449, 5), seed=0, catalogue_context=900 * MIB)
    assert abs(result["held_out"]["context_bytes"] / MIB - 1449) < 5
    assert result["held_out"]["rows"] == 30 and result["all"]["rows"] == 60
    assert result["held_out"]["median_absolute"] < 0.01 < result["catalogue"]["median_absolute"]
    predict.print_table(result)
    shown = capsys.readouterr().out
    assert "900 MiB" in shown and "median error" in shown


def test_the_evidence_is_what_predictions_read():
    text = predict.evidence_of(made_lines(60, 1449, 5), 1449 * MIB, "one card", "2026-01-31")
    evidence = Evidence(**json.loads(text))
    assert (evidence.situation, evidence.count, evidence.date) == ("dense", 60, "2026-01-31")
    assert evidence.low_error <= 0.0 <= evidence.high_error < 0.01


def test_a_row_becomes_the_words_of_the_ordinary_script():
    words = "--input-size 100 --output-size 10 --depth 2 --architecture uniform --batch-size 64"
    assert predict.flags_of(ROW) == words.split()


@pytest.mark.parametrize("release", [213, 215])
def test_a_row_is_predicted_alike_whichever_torch_traces_it(
    release: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(workspaces, "torch_release", lambda version: release)
    (line,) = predict.predict_all([ROW], to_card(find_gpu("a100-40gb")))
    kept = 2 * workspaces.cublas_bytes((8, 0), 206, {})
    assert line["allocated_bytes"] > kept, (
        "a workspace of the script's thread and one of the autograd engine's"
    )
    assert line["allocated_bytes"] < kept + 2 * MIB


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("uniform", [100, 100, 100]),
        ("pyramid", [50, 25, 20]),
        ("bottleneck", [50, 25, 20, 20]),
        ("gradual", [74, 48, 22]),
    ],
)
def test_the_widths_follow_the_architectures_as_measured(architecture: str, expected: list[int]):
    assert widths(architecture, 100, 20, 3) == expected
