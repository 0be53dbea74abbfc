from __future__ import annotations

from brimful.recipes.table import settings_table
from brimful.train.effective import Effective


def test_requested_and_effective_stand_side_by_side():
    rows = [Effective("--batch-size", 1024, 512, "it did not fit"), Effective("--lr", None, 6e-4, "preset p")]
    lines = settings_table("title", rows).splitlines()
    assert lines[0] == "title"
    assert [line.split() for line in lines[1:3]] == [
        ["setting", "requested", "effective", "why"],
        ["batch", "size", "1,024", "512", "it", "did", "not", "fit"],
    ]
    assert lines[3].split()[:3] == ["lr", "–", "0.0006"]


def test_what_the_device_makes_of_a_preset_stands_in_its_place_with_both_reasons():
    rows = [Effective("--precision", None, "auto", "preset p"), Effective("precision", "auto", "bf16", "it is fast")]
    table = settings_table("title", rows)
    assert table.count("precision") == 1 and "bf16" in table and "it is fast (auto: preset p)" in table
    same = settings_table(
        "title", [Effective("--precision", "fp32", "fp32", "given"), Effective("precision", "fp32", "fp32", "x")]
    )
    assert "given" in same and " x" not in same
