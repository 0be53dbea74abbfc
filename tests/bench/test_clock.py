import json
import math

import pytest

from bench.clock import GRID, OTHER_GRID, SEEN, Row, figures, fit
from bench.harness import RESULTS, read_names, read_rows
from brimful.decide.memory.intervals import STEP_TIME, STEP_TIME_GROUPED, committed_evidence
from brimful.decide.speed.kernels import StepKernels
from brimful.decide.speed.predicted import rates_of
from brimful.measure.gpus import find_gpu
from brimful_inside.simulator.roofline import DEFAULT, Efficiency, Kernel


def row(model: str, efficiency: Efficiency, factor: float = 1.0, groups: int = 1) -> Row:
    """A model whose step takes what the clock says with these constants, times a factor."""
    rates = rates_of(find_gpu("rtx3090"))
    assert rates is not None
    kernel = Kernel(
        "aten.convolution.default",
        "fp16",
        2 * 200_000 * 512 * 2304 // groups,
        10**8,
        1,
        0,
        (groups, 200_000, 512 // groups, 2304),
    )
    step = StepKernels((kernel, Kernel("aten.relu.default", "memory", 0, 10**8)), (0, 1, 1))
    measured_s = Row(model, 64, 1.0, step, rates).predicted_s(efficiency) * factor
    return Row(model, 64, measured_s, step, rates)


def test_the_fit_finds_the_constants_that_made_the_times():
    truth = DEFAULT._replace(halved=0.9, direct=0.05)
    constants = fit([row("a", truth), row("b", truth, groups=4)], GRID)
    assert constants == {"halved": 0.9, "direct": 0.05}


def test_figures_are_of_predicted_over_measured():
    published_rows = figures(
        [row("a", DEFAULT, 2.0), row("b", DEFAULT, 1.0), row("c", DEFAULT, 1.1)]
    )
    expected = {"median_ratio": 1 / 1.1, "worst_error": 1.0, "within_25_percent": 2 / 3}
    assert {name: published_rows[name] for name in expected} == pytest.approx(expected)
    assert row("a", DEFAULT, 2.0).log_ratio() == pytest.approx(-math.log(2))
    assert [row("a", DEFAULT, groups=groups).situation for groups in (1, 4)] == [
        STEP_TIME,
        STEP_TIME_GROUPED,
    ]


def committed() -> dict:
    (path,) = RESULTS.glob("clock-rtx3090-*.json")
    return json.loads(path.read_text(encoding="utf-8")) | {"rows": read_rows(path)}


def test_the_committed_result_was_made_with_the_constants_in_force_and_they_are_those_that_fit():
    result = committed()
    for name in (*GRID, *OTHER_GRID):
        assert result["in_force"][name] == result["fitted"][name] == getattr(DEFAULT, name)


def test_no_model_that_was_looked_at_judges():
    result, examined = committed(), read_names(SEEN)
    judges = [row["model"] for row in result["rows"] if not row["seen"]]
    assert not examined & set(judges)
    assert len(judges) == len(set(judges)) == result["held_out"]["models"] >= 100
    assert {row["model"] for row in result["rows"] if row["seen"]} <= examined


def test_the_committed_evidence_is_the_committed_results():
    counts = {
        evidence.situation: evidence.count
        for evidence in committed_evidence()
        if evidence.situation in (STEP_TIME, STEP_TIME_GROUPED)
    }
    published_rows = committed()["held_out_by_situation"]
    assert counts == {
        name: published_rows[name]["models"] for name in (STEP_TIME, STEP_TIME_GROUPED)
    }
