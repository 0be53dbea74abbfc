import json

import pytest

from bench import allocator_fuzz as bench
from bench import harness, second_allocator
from brimful_inside.imaginary.state.ledger import Ledger
from brimful_inside.simulator import allocator, pools


@pytest.mark.parametrize("full", [False, True], ids=["roomy", "nearly full"])
@pytest.mark.parametrize("name", bench.SETTINGS)
def test_both_models_do_the_same(name, full):
    row = bench.run(name, full, 10)
    assert row["events"] > 500 and not row["differences"], row["shortest"]
    assert bool(row["refused"]) == full


@pytest.mark.parametrize(
    ("name", "place", "rule", "other", "events"),
    [
        ("default", allocator, "MIN_LARGE", 9 << 20, 1),
        ("default", second_allocator, "LARGE_UNIT", 22 << 20, 1),
        ("max_split_size", pools, "release_oversize", lambda *_: False, 9),
        ("garbage collection", pools, "collect_garbage", lambda *_: None, 6),
        ("expandable", pools, "best_fit", lambda pool, free, at: at, 9),
        ("streams", Ledger, "_process_events", lambda ledger: None, 5),
    ],
)
def test_another_rule_in_one_of_them_is_found(monkeypatch, name, place, rule, other, events):
    monkeypatch.setattr(place, rule, other)
    cases = bench.run(name, name != "default", 10)["shortest"]
    shortest = min(cases, key=lambda case: len(case["program"]))
    assert len(shortest["program"]) - 1 <= events
    assert bench.difference(shortest["program"][:-1])[0] == ""
    assert bench.difference(shortest["program"])[0] == shortest["what"] != ""


def test_the_table_is_kept_and_a_difference_ends_the_bench_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "SETTINGS", {"default": bench.SETTINGS["default"]})
    words = ["--programs", "3", "--out", str(tmp_path)]
    assert harness.run(bench.main, words) == 0
    kept = json.loads(next(tmp_path.iterdir()).read_text())
    assert [row["card"] for row in kept["rows"]] == ["roomy", "nearly full"]
    monkeypatch.setattr(allocator, "SMALL_SIZE", 512)
    assert harness.run(bench.main, words) == 1
