import pytest

from bench.gpu import figures

MIB = 1 << 20


def row(job: str, size: int, measured: int, predicted: int | None, **more: object) -> dict:
    sides = [
        (side, value)
        for side, value in (("measured", measured), ("predicted", predicted))
        if value is not None
    ]
    made = {
        side: dict.fromkeys(figures.MEMORIES, value * MIB) | {"error": None}
        for side, value in sides
    }
    return {"job": job, "batch_size": size, **made, **more}


def test_a_slope_runs_from_a_jobs_smallest_size_to_its_largest():
    rows = [row("a", 8, 180, 200), row("a", 2, 60, 70), row("a", 4, 999, 999), row("b", 1, 5, 5)]
    assert figures.slopes(rows, "allocated_bytes") == {
        "a": (20 * MIB, pytest.approx(130 / 6 * MIB))
    }
    assert "60.0" in figures.table(rows)[1] and "+16.7%" in figures.table(rows)[1]


def test_the_summary_counts_under_estimates_and_leaves_out_what_was_not_seen():
    of = figures.summary([row("a", 1, 100, 90), row("b", 1, 100, 101), row("c", 1, 100, None)])
    assert of["device_bytes"]["rows"] == 2 and of["device_bytes"]["share_under_by_5_percent"] == 0.5
    assert of["device_bytes"]["worst_absolute"] == pytest.approx(0.1)
    assert of["step_s"] is None and of["slope_device_bytes"] is None
    assert len(figures.summary_table(of)) == 4
