"""The same record as markdown."""

from __future__ import annotations

import pytest

from brimful.show.markdown import code_block, escape, render_markdown, table
from tests.show import pieces, records, run_records

EVERY = records.ALL | run_records.ALL


@pytest.mark.parametrize("name", EVERY)
def test_every_table_has_as_many_cells_in_each_row(name: str) -> None:
    text = render_markdown(EVERY[name]())
    assert text.startswith("**brimful ")
    width = None
    for line in text.splitlines():
        if not line.startswith("| "):
            width = None
            continue
        cells = line.replace("\\|", "").count("|")
        assert width in (None, cells), line
        width = cells


def test_a_plan_is_told_with_its_command_and_its_reasons() -> None:
    text = render_markdown(records.tune_on_cpu())
    assert f"```sh\n{pieces.plan().command_line}\n```" in text
    assert "| batch\\_size | 64 | 48 | the smallest within 3 % of the fastest (128: 312 samples/s) | measured |" in text
    assert "| speed | 218 samples/s (214 to 223) measured | 308 samples/s (303 to 312) measured | 1.41 × |" in text


def test_a_prediction_lists_its_phases_and_the_one_not_seen() -> None:
    text = render_markdown(records.predict_record())
    assert "| train | 13.7 GiB predicted | 14.2 GiB predicted | 14.7 GiB (14.5 to 15.2 GiB) predicted | 42 % |" in text
    assert "| test | not seen |" in text


def test_what_comes_from_outside_means_itself() -> None:
    text = render_markdown(records.hostile_record())
    outside_code = "".join(part for index, part in enumerate(text.split("```")) if index % 2 == 0)
    assert "<script>" not in outside_code
    assert escape("a|b\n`c` *d*") == "a\\|b \\`c\\` \\*d\\*"


def test_a_fence_is_longer_than_the_backticks_within() -> None:
    assert code_block("echo ````") == "`````sh\necho ````\n`````"


def test_a_table_without_rows_is_nothing() -> None:
    assert table(("a", "b"), []) == ""
