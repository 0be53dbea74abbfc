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


def test_a_transformer_whose_patches_a_convolution_cuts_is_one_without_workspaces():
    attention = [("aten._scaled_dot_product_efficient_attention", 1000)] * 24
    assert kind_of(of(("aten.convolution", 1000), *attention)) == "no workspaces"


def test_convolutions_of_unknown_workspaces_have_no_bench_and_the_wide_interval():
    layers = [("aten.convolution.default", 1000), ("aten.mm", 1000)] * 12
    kind = kind_of(of(*layers))
    assert kind == UNKNOWN_WORKSPACES
    assert (
        interval_for(kind).source is Source.ASSUMED
        and interval_for(kind).high > interval_for("no workspaces").high
    )


@pytest.mark.parametrize(
    ("workspace", "kind"), [(0, UNKNOWN_WORKSPACES), (17, "small workspaces"), (18, "workspaces")]
)
def test_networks_are_distinguished_by_the_largest_workspace_of_cudnn(workspace, kind):
    assert kind_of(of(("cudnn_forward", workspace), ("aten.convolution", 979))) == kind
    assert (
        kind_of(of(("aten.convolution", 979), ("cudnn_backward_data", workspace), ("aten.mul", 21)))
        == kind
    )


def test_networks_of_linear_layers_alone_are_dense():
    assert kind_of(of(("aten.addmm", 10), ("aten.relu", 10))) == "dense"
    classifier = of(
        ("aten.addmm.default", 10),
        ("aten._log_softmax.default", 10),
        ("aten._log_softmax_backward_data.default", 10),
    )
    assert kind_of(classifier) == "dense", "its loss has a softmax, and that is no attention"


@pytest.mark.parametrize(
    "attention", ["aten.bmm", "aten._softmax.default", "aten._scaled_dot_product_flash_attention"]
)
def test_language_models_have_no_bench_and_the_wide_interval(attention):
    kind = kind_of(of(("aten.addmm", 10), (attention, 10)))
    assert kind == NO_CONVOLUTIONS
    assert interval_for(kind).source is Source.ASSUMED and kind in interval_for(kind).basis
