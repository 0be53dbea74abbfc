"""The bench's figures, from made rows, and a model's rows from made programs; tracing itself needs
timm.
"""

import json
from dataclasses import replace

import pytest

from bench import harness, timm_rows
from bench.timm_rows import Row
from brimful.decide.memory.intervals import Evidence
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.trace import Free, Malloc, Trace

MIB = 1 << 20
CARD = 40_000 * MIB
SEEN = frozenset(f"net{number}" for number in range(10))


def made_rows(
    models: int, context_mib: int = 1800, factor: float = 1.0, kind: str = "workspaces"
) -> list[Row]:
    """Measured is `factor` times what is predicted, and the context."""
    made = [
        (f"net{number}", size, size * (10 + number))
        for number in range(models)
        for size in (8, 16, 32, 64)
    ]
    return [
        Row(name, kind, size, round(context_mib + factor * mib), mib * MIB, 1.0, False)
        for name, size, mib in made
    ]


def program(batch_size: int, op: str = "aten.convolution.default") -> Program:
    rows = [Malloc(1, 5 * MIB, "aten._to_copy.default"), Malloc(2, batch_size * MIB, op), Free(2)]
    return program_of(Trace({}, rows))


def test_a_perfect_prediction_leaves_a_context_and_no_error():
    result = timm_rows.judge(made_rows(20), SEEN, CARD)
    exact = {"context_bytes": 1800 * MIB, "worst_absolute": 0.0, "rows": 40}
    assert result["held_out"] == {**result["held_out"], **exact} and result["seen"]["rows"] == 40


def rows_of(points: list[tuple[int, int]], reserved_mib: int = 1000) -> list[Row]:
    return [
        Row("net", "workspaces", size, mib, reserved_mib * MIB, 1.0, False) for size, mib in points
    ]


@pytest.mark.parametrize(
    ("points", "reserved_mib", "reason"),
    [
        (
            [(8, 2500), (16, 3200), (32, 8900)],
            1000,
            "88 MiB a sample from 8 to 16, 356 from 16 to 32",
        ),
        ([(8, 27_300), (16, 27_700), (64, 31_400)], 1000, "MiB without any sample"),
        ([(8, 10_500), (16, 12_600)], 39_000, "more than the card has"),
    ],
)
def test_models_whose_rows_look_broken_are_named_with_the_reason(points, reserved_mib, reason):
    assert reason in timm_rows.odd_models(rows_of(points, reserved_mib), CARD, 1800 * MIB)["net"]


def test_no_model_is_both_fitted_on_and_judged_and_those_examined_are_listed():
    fitted, judged = timm_rows.split(made_rows(21), SEEN)
    assert {row.model for row in fitted} == SEEN
    assert {row.model for row in judged} == {f"net{number}" for number in range(10, 21)}
    seen = harness.read_names(timm_rows.SEEN)
    assert "resnet18" in seen and "resnet34d" not in seen
    assert not any(" " in name or "#" in name for name in seen)


@pytest.mark.parametrize("same_order", [True, False])
def test_two_traces_predict_every_row_of_a_model_unless_the_order_changes_with_the_batch_size(
    same_order,
):
    taken = []

    def take(model: str, batch_size: int) -> Program:
        taken.append(batch_size)
        return program(
            batch_size, "aten.convolution.default" if same_order else f"aten.op{batch_size}"
        )

    rows = timm_rows.predict("net", {64: 2000, 32: 1900}, take)
    assert [(row.batch_size, row.device_peak_mib, row.reserved_bytes) for row in rows] == [
        (32, 1900, (20 + 32) * MIB),
        (64, 2000, (20 + 64) * MIB),
    ]
    assert {row.own_trace for row in rows} == {not same_order}
    assert taken[: len(timm_rows.SIZES)] == list(timm_rows.SIZES)
    assert {row.kind for row in rows} == {"convolutions of unknown workspaces"} or not same_order


def test_evidence_is_written_for_kinds_with_families_enough(tmp_path):
    result = {
        "date": "2026-01-31",
        "gpu": "a100-40gb",
        "versions": {"torch": "2.15.0", "timm": "1.0.31"},
    }
    made = made_rows(10) + made_rows(2, kind="no workspaces")
    rows = [replace(row, model=f"{'abcdefghij'[int(row.model[3:])]}net") for row in made]
    timm_rows.write_evidence(rows, 1800 * MIB, result, tmp_path)
    (path,) = tmp_path.iterdir()
    evidence = Evidence(**json.loads(path.read_text()))
    assert evidence.situation == "workspaces" and evidence.count == 40
    assert evidence.high_error == pytest.approx(0.0, abs=1e-6)
