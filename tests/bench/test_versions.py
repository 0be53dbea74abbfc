"""Programs in environments of other versions: what counts as a known difference; nothing is
installed or predicted here.
"""

import sys

import pytest

from bench import programs_page
from bench import versions as bench

MIB = 1 << 20
NEWEST = "Python 3.13, newest torch"


@pytest.fixture
def predicted(monkeypatch, tmp_path):
    """What each environment predicts, by its label and the program: bytes, or an error's words."""
    peaks: dict[tuple[str, str], tuple[int, int] | str] = {}

    def answer(words, command, folder, limit_s, tool=(), **variables):
        name = "/".join(tool) or command[0]
        peak = peaks.get((name, command[1].split("/")[-1]), (300 * MIB, 500 * MIB))
        if isinstance(peak, str):
            return {"answer": {"error": {"problem": peak}}}
        return {"answer": {"peak": dict(zip(bench.PEAK, peak, strict=True))}}

    monkeypatch.setattr(bench.harness, "brimful", answer)
    monkeypatch.setattr(bench, "interpreter", lambda python: python or sys.executable)
    monkeypatch.setattr(bench, "made", lambda folder, *words, **more: str(folder / "bin/python"))
    monkeypatch.setattr(bench, "versions", lambda python, packages: {"torch": "2.13.0"})
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    monkeypatch.setattr(bench, "misread", lambda python: [])
    monkeypatch.setattr(bench, "ENVIRONMENTS", (bench.Environment(NEWEST, "3.13", "torch", "x"),))
    for module in (bench, programs_page):
        monkeypatch.setattr(module, "VERSIONS_RESULT", tmp_path / "versions.json")
    for name in ("PAGE", "OTHERS_PAGE", "VERSIONS_PAGE"):
        monkeypatch.setattr(programs_page, name, tmp_path / f"{name}.md")
    return lambda program, peak: peaks.__setitem__(
        (str(tmp_path / "python-3-13-newest-torch/bin/python"), program), peak
    )


KNOWN = bench.KNOWN[NEWEST]["lstm_lm"]


@pytest.mark.parametrize(
    ("allocated", "reserved", "exit_code"),
    [
        (300 * MIB + KNOWN[0], 500 * MIB + KNOWN[1], 0),
        (300 * MIB + KNOWN[0] + 512, 500 * MIB + KNOWN[1], 1),
        (300 * MIB + KNOWN[0], 502 * MIB + KNOWN[1], 1),
        (300 * MIB, 500 * MIB, 1),
    ],
    ids=["the known one", "one block more", "one segment more", "none any more"],
)
def test_a_difference_that_is_not_the_known_one_to_the_byte_fails(
    predicted, capsys, allocated, reserved, exit_code
):
    predicted("lstm_lm.py", (allocated, reserved))
    assert bench.main(only=["lstm_lm"]) == exit_code
    page = programs_page.VERSIONS_PAGE.read_text()
    if exit_code:
        assert "and not by -16,624,640 and +0" in page
        assert f"lstm_lm, {NEWEST}: differs by" in capsys.readouterr().out
    else:
        assert f"| {NEWEST} | -16,624,640, +0 (1) |" in page and "1. From torch 2.15 on" in page
        assert "| this environment | same |" in page


def test_the_table_of_allocator_settings_is_that_of_the_installed_release(monkeypatch):
    assert bench.misread(sys.executable) == []
    monkeypatch.setitem(bench.KEYS_SINCE, "expandable_segments", 999)
    monkeypatch.setitem(bench.NAMES, "PYTORCH_ALLOC_CONF", 999)
    assert bench.misread(sys.executable) == ["PYTORCH_ALLOC_CONF", "expandable_segments"]


def test_a_table_that_is_not_as_in_the_headers_fails(predicted, monkeypatch, capsys):
    monkeypatch.setattr(bench, "misread", lambda python: ["max_split_size_mb"])
    predicted("lstm_lm.py", (300 * MIB + KNOWN[0], 500 * MIB + KNOWN[1]))
    assert bench.main(only=["lstm_lm"]) == 1
    assert "allocator setting max_split_size_mb" in capsys.readouterr().out
