"""The bench from end to end, with the imaginary card in the real one's place."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import harness, measure_gpu  # noqa: E402
from bench.gpu import child as gpu_child  # noqa: E402
from bench.gpu.jobs import SCRIPTS, Job  # noqa: E402
from brimful.values import Calibration  # noqa: E402
from brimful.verbs import doctor  # noqa: E402
from brimful_inside.wire import Card  # noqa: E402
from tests.brimful_inside.imaginary.conftest import entered  # noqa: E402

GIB = 1 << 30
CARD = {
    "name": "NVIDIA H200",
    "total_bytes": 140 * GIB,
    "capability": [9, 0],
    "multiprocessors": 132,
}
JOB = Job("pairwise", SCRIPTS / "pairwise.py", ("--steps", "6"), (16, 64))


CALIBRATION = Calibration(
    **{name: CARD[name] for name in ("name", "total_bytes", "capability", "multiprocessors")},
    context_bytes=600 * harness.MIB,
    cudnn_bytes=0,
    stages_bytes={},
    others_bytes=0,
    rates={"dispatch_s": 10e-6},
    versions={},
    hostname="a machine",
    date="2026-11-26",
)


def stand_in(arguments: list[str], real: bool) -> Any:
    """`bench.gpu.child` in this process; the card that is real has a context of 600 MiB."""
    if real:
        with entered(Card(**CARD, context_bytes=600 * harness.MIB), None):
            return gpu_child.on_real(*arguments[2:3], arguments[3:])
    gpu_child.main(arguments)
    return json.loads(Path(arguments[1]).read_text())


@pytest.fixture
def card_here(monkeypatch: pytest.MonkeyPatch) -> None:
    described = {
        "card": dict(CARD),
        "versions": {"torch": torch.__version__, "cuda": "13.0", "cudnn": 91300},
    }
    monkeypatch.setattr(measure_gpu.machine, "describe", lambda: described)
    monkeypatch.setattr(measure_gpu, "child", stand_in)
    monkeypatch.setattr(doctor, "calibrate", lambda python, home: (CALIBRATION, Path(home)))
    # One process can imagine one card at a time.
    monkeypatch.setattr(measure_gpu.harness, "cores", lambda: 1)
    monkeypatch.setattr(measure_gpu, "JOBS", (JOB,))


def bench(*words: object) -> None:
    harness.run(measure_gpu.main, [str(word) for word in words])


def only_result(folder: Path) -> dict[str, Any]:
    (path,) = folder.iterdir()
    return json.loads(path.read_text())


def test_jobs_are_measured_predicted_and_kept_in_one_file_named_by_card_and_month(
    card_here, tmp_path, capsys
):
    bench("--out", tmp_path)
    result = only_result(tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name == f"measured-h200-{result['date'][:7]}.json"
    assert [row["batch_size"] for row in result["rows"]] == [16, 64] and not result["cut_short"]
    for row in result["rows"]:
        measured, predicted, without = row["measured"], row["predicted"], row["uncalibrated"]
        for name in ("allocated_bytes", "reserved_bytes", "device_bytes"):
            assert measured[name] == predicted[name]
        assert measured["device_bytes"] == measured["reserved_bytes"] + 600 * harness.MIB
        assert predicted["device_bytes"] == predicted["reserved_bytes"] + predicted["context_bytes"]
        sources = [made["context_source"] for made in (predicted, without)]
        assert sources == ["measured", "assumed"]
        # a host that dispatches half as fast as an ordinary one
        assert predicted["step_s"] > 1.5 * without["step_s"] > 0
        assert len(measured["step_times_s"]) == 3 and measured["step_spread_s"] == [0.0, 0.0]
    figures = result["figures"]
    for name in ("allocated_bytes", "device_bytes"):
        assert figures[name]["worst_absolute"] == 0.0
    assert figures["uncalibrated_device_bytes"]["median_absolute"] > 0.0
    shown = capsys.readouterr().out
    assert "MiB an added sample" in shown and "NVIDIA H200" in shown and "cuda 13.0" in shown
    bench("--out", tmp_path, "--seconds", 0)
    assert only_result(tmp_path) == result, "no earlier result is overwritten by an empty one"
    assert "cut short" in capsys.readouterr().out


def test_a_result_can_be_predicted_again_without_a_card(card_here, tmp_path, monkeypatch, capsys):
    bench("--out", tmp_path)
    (path,) = tmp_path.iterdir()
    result = json.loads(path.read_text())
    for row in result["rows"]:
        row["predicted"] = {"error": "an older version"}
    path.write_text(json.dumps(result))
    monkeypatch.setattr(
        measure_gpu.machine, "describe", lambda: pytest.fail("a card was asked for")
    )
    bench("--again", path)
    assert all(row["predicted"]["error"] is None for row in only_result(tmp_path)["rows"])


def test_what_others_hold_is_taken_off_and_an_unknown_is_none():
    figures = {
        "error": None,
        "reserved_bytes": 100 * harness.MIB,
        "context_bytes": 700 * harness.MIB,
        "step_s": [0.3, 0.1, 0.2],
    }
    result = measure_gpu.measured_of(figures, 200 * harness.MIB, 820 * harness.MIB)
    assert (
        result["device_bytes"] == 600 * harness.MIB
        and result["watched_device_bytes"] == 620 * harness.MIB
    )
    assert result["step_s"] == 0.2 and result["step_spread_s"] == [0.1, 0.3]
    alone = measure_gpu.measured_of(figures, None, None)
    assert (
        alone["device_bytes"] == 800 * harness.MIB
        and alone["others_bytes"] is None
        and alone["watched_device_bytes"] is None
    )
    assert measure_gpu.measured_of({"error": "killed"}, 0, None)["step_s"] is None


def test_it_needs_no_package_but_torch():
    """Without site-packages only what stands in the repository and the standard library can be
    imported.
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import bench.measure_gpu"],
        cwd="/",
        env=harness.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
