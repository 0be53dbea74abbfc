"""The runner, its page, and one part from end to end."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import harness  # noqa: E402
from bench.card import __main__ as card  # noqa: E402
from bench.card.bench import RESULTS, read  # noqa: E402
from bench.card.page import page  # noqa: E402
from bench.card.parts import Part  # noqa: E402
from bench.card.predicted import joined  # noqa: E402

MEASURED = harness.RESULTS / "measured-h200-2026-11.json"
FAILING = "tests.bench.card.parts_that_fail"


def ran(monkeypatch, folder: Path, *calls: str, seconds: float = 30.0) -> list[dict[str, Any]]:
    """The rows that parts with these functions left."""
    parts = {call: Part(call, f"{FAILING}:{call}", 10) for call in calls}
    monkeypatch.setattr(card, "PARTS", parts)
    card.main(seconds=seconds, out=folder)
    return read(folder / RESULTS)


def test_a_part_that_fails_or_lacks_a_package_does_not_stop_the_next(monkeypatch, tmp_path):
    rows = ran(monkeypatch, tmp_path, "fails", "lacks", "each", seconds=90)
    ends = {row["part"]: row["ended"] for row in rows if "ended" in row}
    assert list(ends) == ["fails", "lacks", "each"]
    assert "no such kernel" in ends["fails"] and ends["lacks"] == ends["each"] == "done"
    assert [row["number"] for row in rows if "number" in row] == [1, 0, 2]
    (failed,) = (row["error"] for row in rows if "error" in row)
    assert failed == "SystemExit: this side failed"
    (skipped,) = (row["skipped"] for row in rows if "skipped" in row)
    assert skipped == "a_package_that_is_not_there is not installed"
    with tarfile.open(tmp_path / "card.tar.gz") as archive:
        assert {RESULTS, "page.md", "fails.log"} <= set(archive.getnames())


def test_the_page_of_a_card_begins_with_it_and_has_a_table_for_each_kind_of_row():
    rows = card.earlier(MEASURED)
    rows += [
        {**row, "part": "predictions", "predicted": row["measured"]}
        for row in rows
        if row["part"] == "times"
    ]
    edge = {"largest_that_runs": 10, "smallest_that_does_not": 11, "share_named": 0.9}
    rows.append({"part": "edges", "job": "gpt", "named": 9, **edge})
    calls = [{"call": call, "expected": "0", "result": "0"} for call in ("a()", "b()")]
    rows += [{"part": "first_use", **call} for call in (calls[0], calls[1] | {"result": "2"})]
    took = {"exit_code": 1, "seconds": 2.0, "as_expected": False}
    rows.append({"part": "verbs", "verb": "tune", **took})
    goal = {"side": "tuned", "reached": False, "wall_s": 9.0, "exact": 0.5, "goal": "90% read"}
    rows.append({"part": "captcha", **goal})
    rows.append({"part": "captcha", "ended": "cut off at its limit", "seconds": 9.0})
    text = page(rows)
    assert text.startswith("NVIDIA H200, 143,155 MiB; 16 cores of Intel(R) Xeon(R) Processor")
    assert "Calibrated off by 0.00% in the median" in text and "(44 trainings)" in text
    for line in ("| 9 | gpt | 10 | 11 | 0.9 |", "| tune | 1 | NO | 2 |"):
        assert line in text
    assert "| tuned | 90% read | NO | 9 | 0.5 |" in text
    assert "cut off at its limit after 9 s" in text
    assert "2 calls, 1 of them with another answer." in text and '"call": "b()"' in text


def test_trainings_are_joined_with_their_predictions_which_can_be_left_out(
    tmp_path,
):
    rows = card.earlier(MEASURED)
    measured = [row for row in rows if row["part"] == "memory"]
    assert len(measured) == 44 and all(row["measured"]["allocated_bytes"] for row in measured)
    predicted = {**measured[0], "part": "predictions", "predicted": {"step_s": 1.0}}
    assert joined([*rows, predicted], measured)[0]["predicted"] == {"step_s": 1.0}
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (*rows, predicted)))
    assert card.earlier(path) == rows


def test_the_runner_needs_no_package_that_is_not_in_this_clone():
    """Without site-packages only what stands in the repository and the standard library can be
    imported.
    """
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import bench.card.__main__"],
        cwd="/",
        env=harness.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
