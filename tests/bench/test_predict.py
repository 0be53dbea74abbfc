"""The bench's figures, from made rows; the trials themselves are tested with the imaginary GPU."""

import pytest

from bench import predict
from brimful.measure.gpus import find_gpu, to_card
from brimful_inside.simulator import workspaces

MIB = 1 << 20
ROW = {"input_size": "100", "output_size": "10", "depth": "2", "architecture": "uniform"}
ROW |= {"batch_size": "64", "device_peak_mib": "1500"}


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
