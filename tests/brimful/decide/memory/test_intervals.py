import pytest

from brimful.decide.memory import intervals
from brimful.decide.memory.intervals import (
    ASSUMED_ERROR,
    NO_CONVOLUTIONS,
    SEVERAL_RANKS,
    UNKNOWN_WORKSPACES,
    Evidence,
    RelativeInterval,
    committed_evidence,
    growth,
    interval_for,
    kind_of,
)
from brimful.values import Source
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.trace import Free, Malloc, Trace


def evidence(situation: str, low: float, high: float, count: int = 100) -> Evidence:
    return Evidence(situation, 0.0, low, high, count, "2026-01-01", "one card", "a bench")


@pytest.mark.parametrize(
    ("kind", "high", "source"),
    [("workspaces", ASSUMED_ERROR, Source.ASSUMED), ("dense", 0.03, Source.MEASURED)],
)
def test_the_bench_with_most_runs_is_taken_and_without_one_the_interval_is_assumed(
    monkeypatch, kind, high, source
):
    known = [evidence("dense", -0.1, 0.1, 30), evidence("dense", 0.01, 0.03, 900)]
    monkeypatch.setattr(intervals, "committed_evidence", lambda: known)
    interval = interval_for(kind)
    assert (interval.high, interval.source) == (high, source)
    assert ("assumed" in interval.basis) == (source is Source.ASSUMED)
    low, high = interval.around(1000.0)
    assert low <= 1000 < high, "it holds the prediction even where all runs lay on one side"


def test_an_interval_grows_with_each_doubling_beyond_what_was_seen():
    assert growth(64, 64, 0.06) == growth(10, 64, 0.06) == 0
    assert growth(512, 64, 0.06) == pytest.approx(0.18)
    interval = RelativeInterval(-0.02, 0.02, "a bench", Source.MEASURED)
    assert interval.around(1000, 0.18) == (800, 1200)


def test_what_comes_with_the_package_can_be_read():
    for bench in committed_evidence():
        assert bench.low_error <= bench.median_error <= bench.high_error
        assert bench.count >= (4 if bench.situation == SEVERAL_RANKS else 20)


def of(*allocations: tuple[str, int]) -> Program:
    """A program that keeps all it allocates, but cuDNN's workspaces."""
    rows: list = []
    for number, (op, nbytes) in enumerate(allocations):
        rows.append(Malloc(number, nbytes, op))
        if op.startswith("cudnn_"):
            rows.append(Free(number))
    return program_of(Trace({}, rows))


CONVOLUTION, PRODUCT = ("aten.convolution", 979), ("aten.addmm", 10)
FLASH = ("aten._scaled_dot_product_flash_attention", 1000)
LOSS = [("aten._log_softmax.default", 10), ("aten._log_softmax_backward_data.default", 10)]


@pytest.mark.parametrize(
    ("allocations", "kind"),
    [
        ([PRODUCT, ("aten.relu", 10)], "dense"),
        ([PRODUCT, *LOSS], "dense"),  # a loss has a softmax, and that is no attention
        ([PRODUCT, ("aten.bmm", 10)], NO_CONVOLUTIONS),
        ([PRODUCT, ("aten._softmax.default", 10)], NO_CONVOLUTIONS),
        ([PRODUCT, FLASH], NO_CONVOLUTIONS),
        # a convolution that cuts patches, and a network of them whose workspaces nobody knows
        ([("aten.convolution", 1000), *[FLASH] * 24], "no workspaces"),
        ([("aten.convolution", 1000), ("aten.mm", 1000)] * 12, UNKNOWN_WORKSPACES),
        ([("cudnn_forward", 0), CONVOLUTION], UNKNOWN_WORKSPACES),
        ([("cudnn_forward", 17), CONVOLUTION], "small workspaces"),
        ([CONVOLUTION, ("cudnn_backward_data", 18), ("aten.mul", 21)], "workspaces"),
    ],
)
def test_kinds_of_networks_are_known_by_what_they_allocate_and_some_have_no_bench(
    allocations, kind
):
    assert kind_of(of(*allocations)) == kind
    assumed = kind in (NO_CONVOLUTIONS, UNKNOWN_WORKSPACES)
    assert (interval_for(kind).source is Source.ASSUMED) is assumed
    assert interval_for(kind).high > interval_for("no workspaces").high or not assumed
