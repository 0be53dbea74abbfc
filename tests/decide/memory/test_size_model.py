from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory import size_model
from brimful.decide.memory.size_model import (
    Polynomial,
    SizeModel,
    common_prefix,
    fit_polynomial,
    fit_size_model,
    most_trusted,
    third_size,
)
from brimful_inside.simulator import workspaces
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import settings_from
from brimful_inside.simulator.program import joined, program_of
from brimful_inside.simulator.replay import replay
from brimful_inside.simulator.trace import Malloc, Phase, Trace
from tests.decide.programs import Script, affine, network

MIB = 1 << 20


def fitted(script: Script) -> SizeModel:
    model = fit_size_model(programs(script, 5, 12))
    assert model is not None
    return model


def programs(script: Script, *sizes: int):
    return {size: program_of(script.trace(size)) for size in sizes}


@given(constant=st.integers(0, 10**9), linear=st.integers(-1000, 10**7), b1=st.integers(1, 40), gap=st.integers(1, 40))
def test_a_line_through_two_points_is_exact_for_whole_sizes(constant, linear, b1, gap):
    line = fit_polynomial([(b, constant + linear * b) for b in (b1, b1 + gap)])
    assert line.exact
    assert line.at(1000) == constant + linear * 1000


@given(a=st.integers(0, 10**6), b=st.integers(0, 10**6), c=st.integers(1, 10**4), sizes=st.sets(st.integers(1, 90), min_size=3))
def test_a_parabola_through_three_points_knows_pairs_within_a_batch(a, b, c, sizes):
    def pairs(size):
        return a + b * size + c * (size * (size - 1) // 2)

    line = fit_polynomial([(size, pairs(size)) for size in sorted(sizes)[:3]])
    assert line.exact
    assert [line.at(size) for size in (1, 7, 500)] == [pairs(size) for size in (1, 7, 500)]


@pytest.mark.parametrize("rounded", [lambda b: 1000 * (b // 2), lambda b: -(-b // 8)])
def test_a_size_that_was_rounded_is_not_exact(rounded):
    assert not fit_polynomial([(5, rounded(5)), (12, rounded(12))]).exact


@pytest.mark.parametrize("sizes", [[4, 4], [1, 2, 3, 4]])
def test_a_polynomial_needs_one_to_three_different_batch_sizes(sizes):
    with pytest.raises(ValueError, match="one to three different batch sizes"):
        fit_polynomial([(size, number) for number, size in enumerate(sizes)])


@given(seed=st.integers(0, 10**6), batch_size=st.integers(1, 600), conf=st.sampled_from(["", "expandable_segments:True"]))
@settings(max_examples=60, deadline=None)
def test_sizes_from_two_traces_replayed_at_any_batch_size_equal_a_direct_replay(seed, batch_size, conf):
    script, chosen = network(seed, layers=6), settings_from(conf)
    model = fitted(script)
    assert model.exact
    program = program_of(script.trace(batch_size))
    direct = replay(program, program.sizes, CachingAllocator(settings=chosen))
    predicted = model.replay_at(batch_size, chosen)
    assert (predicted.phases, predicted.peak) == (direct.phases, direct.peak)
    assert model.difference_from(program, batch_size) is None


def test_the_first_allocation_that_differs_is_named():
    script = Script([("malloc", "x", lambda b: 100 * min(b, 20))])
    model = fitted(script)
    difference = model.difference_from(program_of(script.trace(50)), 50)
    assert difference == "allocation 0 (aten.op0): 5000 bytes predicted, 2000 seen"


def test_there_is_no_model_where_the_order_depends_on_the_batch_size():
    def steps(b):
        return program_of(Trace({}, [Malloc(i, 10, "x") for i in range(b)]))

    assert fit_size_model({5: steps(5), 12: steps(12)}) is None
    assert third_size({5: steps(5), 12: steps(12)}) is None


def test_two_traces_do_for_affine_sizes_and_a_third_follows_where_batch_meets_batch():
    assert third_size(programs(network(1), 5, 12)) is None
    assert third_size(programs(Script([("malloc", "x", lambda b: 4 * b * b)]), 5, 12)) == 20


def test_a_workspace_is_computed_anew_from_its_own_numbers(monkeypatch):
    monkeypatch.setitem(workspaces.FORMULAS, "tiles", lambda rows, width: -(-rows // 64) * 64 * width)

    def trace(b):
        return Trace({}, [Malloc(1, workspaces.bytes_of("tiles", (b * 3, 1024)), "conv", "tiles", (b * 3, 1024))])

    model = fit_size_model({b: program_of(trace(b)) for b in (5, 12)})
    assert model is not None and model.exact
    assert model.sizes_at(1000) == [workspaces.bytes_of("tiles", (3000, 1024))]
    assert not model.constant


def test_what_does_not_depend_on_the_batch_is_constant():
    model = fit_size_model(programs(Script([("malloc", "w", affine(1000, 0))]), 5, 12))
    assert model is not None and model.constant and not model.superlinear


def test_a_broken_model_is_caught_by_the_trace_that_was_not_fitted():
    """The guard can fail: a polynomial that is off by one byte at one allocation is not taken for a reproduction."""
    script = network(4)
    model = fitted(script)
    first = model.polynomials[model.polynomial_of[0]]
    broken = replace(model, polynomials=(Polynomial(first.constant + 1), *model.polynomials[1:]))
    assert model.polynomial_of[0] == 0
    assert broken.difference_from(program_of(script.trace(30)), 30) is not None


@given(seed=st.integers(0, 10**6), batch_size=st.integers(1, 300), most=st.integers(0, 1 << 32))
@settings(max_examples=40, deadline=None)
def test_a_replay_that_may_stop_shows_all_or_nothing(seed, batch_size, most):
    model = fitted(network(seed, layers=5))
    whole, stopped = model.replay_at(batch_size), model.replay_at(batch_size, stop_above=most)
    assert stopped.stopped == (whole.peak.reserved > most)
    assert stopped.stopped or stopped == whole


def test_nothing_is_replayed_where_more_is_alive_than_may_be_reserved(monkeypatch):
    model = fitted(network(3))
    monkeypatch.setattr(size_model, "replay_cards", lambda *args: pytest.fail("replayed"))
    assert model.replay_at(100_000, stop_above=20 << 30).stopped


def test_of_several_cards_each_is_replayed_and_the_worst_counts():
    """The second has the larger weights, the third the larger work: which is the worst depends on the size."""
    scripts = [Script([("phase", "train"), ("malloc", "w", affine(fixed * MIB, 0)), ("malloc", "a", affine(0, each * MIB))])
               for fixed, each in ((30, 1), (200, 1), (30, 5))]  # fmt: skip
    model = fit_size_model({size: joined([program_of(one.trace(size)) for one in scripts]) for size in (5, 12)})
    assert model is not None
    for size, worst in ((20, 1), (100, 2)):
        peaks = [played.peak.reserved for played in model.replay_cards_at(size)]
        assert model.replay_at(size).peak.reserved == max(peaks) == peaks[worst]


def test_the_model_that_gives_the_traces_at_the_frontier_is_trusted_most():
    kinked = Script([("malloc", "x", lambda b: 100 * b if b < 20 else 4000 + 50 * b)])
    found = most_trusted(programs(kinked, 5, 12, 40, 60, 80), [60, 80])
    assert found is not None and set(found.reproduced) == {40, 60, 80} and found.verified
    assert found.size_model.sizes_at(100) == [9000]
    straight = most_trusted(programs(network(2), 5, 12, 30), [12, 30])
    assert straight is not None and straight.reproduced == (5, 12, 30) and straight.size_model.fitted_at == (12, 30)
    assert most_trusted(programs(kinked, 5), [5]) is None


BEFORE = [("malloc", "w", affine(4096, 0)), ("malloc", "a", affine(0, 1000)), ("free", "a")]
KINKED = ("malloc", "b", lambda b: 2000 * min(b, 50))


@pytest.mark.parametrize(
    ("fitted_on", "seen"),
    [
        pytest.param([("malloc", "b", affine(0, 2000))], [("phase", "eval")], id="another event"),
        pytest.param([KINKED], [KINKED, ("free", "b")], id="other bytes"),
        pytest.param([("malloc", "b", affine(0, 2000)), ("free", "b")], [], id="an earlier end"),
    ],
)
def test_the_common_prefix_ends_before_the_first_difference(fitted_on, seen):
    begun = common_prefix(fitted(Script([*BEFORE, *fitted_on])), program_of(Script([*BEFORE, *seen]).trace(100)), 100)
    assert begun is not None and begun.program.events == program_of(Script(BEFORE).trace(100)).events
    assert begun.sizes_at(100) == [4096, 100_000]


def test_there_is_no_common_prefix_where_the_first_allocation_differs_already():
    other = program_of(Script([("malloc", "w", affine(8192, 0))]).trace(100))
    assert common_prefix(fitted(Script(BEFORE)), other, 100) is None


def test_a_common_prefix_keeps_its_own_workspaces_alone():
    def program(b, *more):
        cublas = Malloc(1, workspaces.bytes_of("cublas", (9, 0, 213)), "mm", "cublas", (9, 0, 213))
        return program_of(Trace({}, [cublas, *more, cublas._replace(id=9)]))

    model = fit_size_model({b: program(b) for b in (5, 12)})
    assert model is not None
    begun = common_prefix(model, program(100, Phase("eval")), 100)
    assert begun is not None and set(begun.workspace_of) == {0}
