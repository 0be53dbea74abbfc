"""The table of other people's programs, and what the bench makes of what brimful says of them;
nothing is predicted here.
"""

import re

import pytest

from bench.programs_page import strangers_section
from bench.strangers import __main__ as bench
from bench.strangers.make_data import KINDS
from bench.strangers.table import HERE, STRANGERS

PEAK = {"device_bytes": 2 << 30, "device_interval_bytes": [1900 << 20, 2300 << 20]}


def row(name="yolo detect train", **more):
    return {
        "name": name,
        "package": "ultralytics",
        "gpu": "a100-40gb",
        "batch_size": 16,
        "date": "2026-11-23",
        "predict": {
            "exit_code": 0,
            "seconds": 40.2,
            "peak": PEAK,
            "largest_batch_size": 64,
            "limited_by": "dataset",
            "ignores_batch_size": False,
        },
        "audit": {
            "exit_code": 0,
            "seconds": 9.6,
            "findings": ["too many workers", "another"],
            "effective": {},
        },
        **more,
    }


def test_fifteen_packages_at_least_are_there_each_pinned_with_its_data_and_script():
    files = sorted(HERE.glob("requirements*.txt"))
    lines = [line for file in files for line in file.read_text().splitlines()]
    pins = {
        re.split(r"[\[=]", line)[0].replace("_", "-")
        for line in lines
        if re.fullmatch(r"[\w\[\]-]+==[\w.]+", line)
    }
    pinned = [line for line in lines if not line.startswith("#")]
    assert len(pins) == len(pinned) - 2, "one is not pinned; torch and torchvision are twice"
    others = (HERE / "constraints.txt").read_text().splitlines()[1:]
    assert len(others) > 100 and all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in others)
    packages = {program.package.replace("_", "-") for program in STRANGERS}
    assert len(packages) >= 15 and packages <= pins
    assert len({program.name for program in STRANGERS}) == len(STRANGERS)
    in_settings = {"torchtune", "nnunetv2"}  # of which a file has the batch size
    for program in STRANGERS:
        words = program.command("/bin", "/data")
        assert (
            program.data in KINDS
            and sum("{batch_size}" in word for word in words)
            == (program.package not in in_settings)
            and "{" not in words[0]
        )
        assert all(
            (HERE / "scripts" / word.rpartition("/")[2]).exists()
            for word in words
            if "/scripts/" in word
        )


def test_the_table_shows_the_peak_the_first_finding_and_why_a_program_does_not_run():
    broken = row(
        "trl sft",
        predict={"exit_code": 5, "seconds": 3.0, "error": "a | b\nfailed"},
        audit={"seconds": 1.0, "error": "x"},
    )
    ignoring = row("open_clip_train", predict={**row()["predict"], "ignores_batch_size": True})
    text = strangers_section({"packages": {"torch": "2.15.0"}, "rows": [row(), broken, ignoring]})
    assert (
        "2048 MiB (1900 to 2300) | 64 (dataset) | too many workers (and 1 more) | 40 + 10 |" in text
    )
    assert (
        "does not run: a / b failed" in text
        and "no audit: x" in text
        and "the batch size is ignored" in text
    )
    assert "torch 2.15.0" in text


@pytest.mark.parametrize("kind", ["boxes", "captions", "pictures"])
def test_data_are_made_without_a_network(kind, tmp_path):
    pytest.importorskip("PIL")
    KINDS[kind](tmp_path)
    assert len(list(tmp_path.rglob("*.jpg"))) > 80


def test_the_packages_of_an_environment_are_kept_where_one_of_its_programs_was_run(monkeypatch):
    kept = {}
    monkeypatch.setattr(bench, "versions", lambda python, names: {"torch": python})
    monkeypatch.setattr(bench, "row_of", lambda *_: {"predict": {}, "audit": {}})
    monkeypatch.setattr(bench, "keep", lambda *_, packages: kept.update(packages))
    bench.main(python="new", older="old", only=["recbole"])
    assert kept == {"torch of the older ones": "old"}
    bench.main(python="new", older="old", only=["trl"])
    assert kept == {"torch of the older ones": "old", "torch": "new"}
