"""What is reported of a script, on an imaginary card."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench.card import child  # noqa: E402
from bench.card.jobs import SCRIPTS  # noqa: E402

CARD = {
    "name": "NVIDIA H200",
    "total_bytes": 140 << 30,
    "capability": [9, 0],
    "multiprocessors": 132,
    "context_bytes": 1 << 29,
}
PAIRWISE = str(SCRIPTS / "pairwise.py")


def reported(folder: Path, script: str, *words: str, **spec: Any) -> dict[str, Any]:
    spec |= {"result": str(folder / "result"), "card": CARD | {"capacity_bytes": 139 << 30}}
    (folder / "spec").write_text(json.dumps(spec))
    child.main([str(folder / "spec"), script, *words])
    return json.loads((folder / "result").read_text())


def test_peaks_segments_and_a_time_for_each_step_after_the_warm_up_are_reported(tmp_path):
    words = ("--batch-size", "32", "--steps", "8")
    result = reported(tmp_path, PAIRWISE, *words, history=True, lock=str(tmp_path / "lock"))
    assert result["error"] is None and result["steps"] == 8
    assert len(result["step_s"]) == 8 - child.WARMUP_STEPS
    assert 0 < result["allocated_bytes"] < result["reserved_bytes"]
    taken = sum(size for _, size, _ in result["segments"]["rows"])
    assert taken << 10 == result["reserved_bytes"], "nothing was given back"
    assert result["context_bytes"] == result["bare_context_bytes"] == 1 << 29
    assert (tmp_path / "result.trace.gz").stat().st_size > 100


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("convnet", "--block separable --width 8 --depth 1 --image-size 32 --channels-last"),
        ("gpt", "--layers 1 --width 32 --heads 4 --length 16 --gated --groups 2"),
        ("gpt", "--layers 1 --width 32 --heads 2 --length 16 --root-mean-square --checkpoint"),
    ],
)
def test_every_script_trains_with_its_flags(tmp_path, script, flags):
    words = [*flags.split(), "--amp", "bf16", "--batch-size", "2", "--steps", "2"]
    result = reported(tmp_path, str(SCRIPTS / f"{script}.py"), *words)
    assert result["error"] is None and result["steps"] == 2
