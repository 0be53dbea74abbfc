import json

from bench.clock import GRID, OTHER_GRID
from bench.harness import RESULTS, read_rows
from brimful_inside.simulator.roofline import DEFAULT


def committed() -> dict:
    (path,) = RESULTS.glob("clock-rtx3090-*.json")
    return json.loads(path.read_text(encoding="utf-8")) | {"rows": read_rows(path)}


def test_the_committed_result_was_made_with_the_constants_in_force_and_they_are_those_that_fit():
    result = committed()
    for name in (*GRID, *OTHER_GRID):
        assert result["in_force"][name] == result["fitted"][name] == getattr(DEFAULT, name)
