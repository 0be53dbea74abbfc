"""What the bench of the programs makes of predictions, and the page it writes; nothing is predicted
here.
"""

import json
from dataclasses import replace

from bench import programs_page
from bench.run_scripts import troubles
from bench.scripts_table import by_key

MIB = 1 << 20


def row(build: str = "CPU", **more) -> dict:
    return {
        "program": "mlp",
        "build": build,
        "date": "2026-11-20",
        "exit_code": 0,
        "seconds": 4.6,
        "traces": 3,
        "peak": {"device_bytes": 2048 * MIB, "device_interval_bytes": [1900 * MIB, 2300 * MIB]},
        "largest_batch_size": 4096,
        "limited_by": "dataset",
        **more,
    }


def test_a_phase_that_was_not_seen_and_an_unexpected_approximation_are_troubles():
    program = replace(by_key("mlp"), phases=("train", "eval"), approximations=("nonzero",))
    for phases, approximations, named in (
        ({"train": 1}, {"nonzero": 2}, ["eval was not seen"]),
        ({"train": 1, "eval": 1}, {"unique": 1}, ["approximated: unique"]),
        ({"train": 1, "eval": 1}, {}, []),
    ):
        assert troubles(program, {"phases": phases, "approximations": approximations}) == named


def test_each_row_is_kept_at_once_in_the_place_of_an_old_one_and_others_stay(tmp_path, monkeypatch):
    result = tmp_path / "programs.json"
    monkeypatch.setattr(programs_page, "PROGRAMS_RESULT", result)
    monkeypatch.setattr(programs_page, "PAGE", tmp_path / "programs.md")
    before = {"builds": {"CPU": {"torch": "2.13.0"}}, "rows": [row(), row(program="gone")]}
    result.write_text(json.dumps(before))
    for new, builds in (
        (row("CUDA", seconds=7.7), {"CUDA": {"torch": "2.15.0"}}),
        (row(seconds=9.0), {"CPU": {"torch": "2.14.0"}}),
    ):
        programs_page.keep(result, [new], ("program", "build"), ["mlp", "dcgan"], builds=builds)
    kept = json.loads(result.read_text())
    assert [(r["program"], r["build"], r["seconds"]) for r in kept["rows"]] == [
        ("mlp", "CPU", 9.0),
        ("mlp", "CUDA", 7.7),
    ]
    assert kept["builds"] == {"CPU": {"torch": "2.14.0"}, "CUDA": {"torch": "2.15.0"}}
    assert "torch 2.15.0" in programs_page.PAGE.read_text()


def test_the_page_in_the_docs_is_the_one_of_the_results():
    assert programs_page.PAGE.read_text() == programs_page.whole_page()
