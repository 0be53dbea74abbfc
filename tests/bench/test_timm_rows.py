"""The bench's figures, from made rows, and a model's rows from made programs; tracing itself needs
timm.
"""

import pytest

from bench import timm_rows
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.trace import Free, Malloc, Trace

MIB = 1 << 20


def program(batch_size: int, op: str = "aten.convolution.default") -> Program:
    rows = [Malloc(1, 5 * MIB, "aten._to_copy.default"), Malloc(2, batch_size * MIB, op), Free(2)]
    return program_of(Trace({}, rows))


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
    assert all(row.low_bytes < row.reserved_bytes < row.high_bytes for row in rows)
