import pytest

from brimful.decide.memory import intervals
from brimful.decide.memory.intervals import (
    ALLOCATOR,
    ALLOCATOR_BYTES,
    SEVERAL_RANKS,
    Evidence,
    RelativeInterval,
    committed_evidence,
    growth,
    of_compiled,
    of_several_ranks,
    parts_of,
    with_part,
)
from brimful.values import IntervalPart
from brimful_inside.simulator.assumptions import (
    ASSUMPTIONS,
    PLACEMENT,
    SCALED,
    SKIPPED_STEPS,
    WORKSPACES,
)
from brimful_inside.simulator.replay import Peaks
from tests.brimful.decide.programs import GIB, MIB, card


def evidence(situation: str, low: float, high: float, count: int = 100) -> Evidence:
    return Evidence(situation, 0.0, low, high, count, "2026-01-01", "one card", "a bench")


def test_of_several_ranks_the_bench_with_most_runs_widens_the_interval(monkeypatch):
    benches = [evidence(SEVERAL_RANKS, -0.5, 0.5, 4), evidence(SEVERAL_RANKS, -0.001, 0.2, 6)]
    monkeypatch.setattr(intervals, "committed_evidence", lambda: benches)
    wider = of_several_ranks(ALLOCATOR)
    assert (wider.low, wider.high) == (ALLOCATOR.low, 0.2)
    assert "6 runs" in wider.basis


def test_compiled_code_takes_much_less_or_with_cuda_graphs_a_third_more():
    plain, graphs = (
        parts_of(100 * GIB, of_compiled(ALLOCATOR, names), {})[0]
        for names in (["bincount", "torch.compile"], ["torch.compile with CUDA graphs"])
    )
    assert plain.name == graphs.name == "torch.compile"
    assert plain.below_bytes == graphs.below_bytes == pytest.approx(40 * GIB, rel=0.01)
    assert (plain.above_bytes, graphs.above_bytes) == pytest.approx((5 * GIB, 33 * GIB), rel=0.01)
    assert of_compiled(ALLOCATOR, ["bincount"]) is ALLOCATOR


def test_an_interval_grows_with_each_doubling_beyond_what_was_seen():
    assert growth(64, 64, 0.06) == growth(10, 64, 0.06) == 0
    assert growth(512, 64, 0.06) == pytest.approx(0.18)
    assert card(GIB, 0).around(1000, 0.18) == (820, 1180)
    assert card(GIB, 0, 0.02).around(1000, 0.18) == (800, 1200)


def test_what_comes_with_the_package_can_be_read():
    for bench in committed_evidence():
        assert bench.low_error <= bench.median_error <= bench.high_error
        assert bench.count >= (4 if bench.situation == SEVERAL_RANKS else 20)


def test_the_part_of_the_allocator_has_room_for_one_segment_more():
    (part,) = parts_of(10 * GIB, ALLOCATOR, {})
    assert part.above_bytes == pytest.approx(ALLOCATOR.high * 10 * GIB + ALLOCATOR_BYTES, abs=1)
    assert part.below_bytes == pytest.approx(-ALLOCATOR.low * 10 * GIB, abs=1)
    (exact,) = parts_of(10 * GIB, RelativeInterval(0.0, 0.0, ""), {})
    assert (exact.below_bytes, exact.above_bytes) == (0, 0)


@pytest.mark.parametrize("name", [WORKSPACES, SCALED, PLACEMENT, SKIPPED_STEPS])
def test_what_replays_showed_is_widened_downwards_where_cards_reserved_less(name):
    _, part = parts_of(10 * GIB, ALLOCATOR, {name: (MIB, 2 * MIB)})
    assert part.name == name and part.above_bytes == 2 * MIB
    assert (part.below_bytes > MIB) == (name in (WORKSPACES, SCALED)) == ("H200" in part.evidence)
    _, wide = parts_of(10 * GIB, ALLOCATOR, {name: (9 * GIB, 0)})
    assert wide.below_bytes == 9 * GIB


def test_a_further_part_widens_the_interval_by_itself_and_one_of_nothing_does_not():
    peak = card(9 * GIB, GIB, 0.1).estimate(Peaks(GIB, GIB))
    assert with_part(peak, IntervalPart("nothing", 0, 0, "")) == peak
    low, high = peak.device_interval_bytes
    wider = with_part(peak, IntervalPart("masks", 2 * GIB, 3, "counted as their most"))
    assert wider.device_interval_bytes == (0, high + 3) and low > 0
    assert [part.name for part in wider.interval_parts] == ["masks", "PyTorch's allocator"]


def test_every_assumption_belongs_to_a_part_whose_evidence_is_named():
    for assumption in ASSUMPTIONS:
        assert parts_of(GIB, ALLOCATOR, {assumption.part: (0, 0)})[1].evidence
