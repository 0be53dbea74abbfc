"""The breakdown of a prediction is made from whatever gave its peak: laws, a trace of that size, one of several cards."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "decide"))
from programs import GIB, card, network

from brimful.decide.memory.size_model import fit_size_model
from brimful.verbs.warnings import Answer
from brimful.verbs.what_if import find
from brimful_inside.simulator.program import joined, program_of
from brimful_inside.simulator.trace import CardTrace

CARD = card(4 * GIB)


def find_at(scripts, sizes, model, batch_size, device_bytes):
    """What `find` gives where a Tracer has traced `scripts`, a card each, at `sizes`."""

    def cards(size):
        return tuple(CardTrace(rank, 0, one.trace(size)) for rank, one in enumerate(scripts))

    tracer = SimpleNamespace(card=CARD, samples=dict.fromkeys(sizes), cards=cards, effective=lambda size: size)
    peak, conclusion = SimpleNamespace(device_bytes=device_bytes), SimpleNamespace(size_model=model)
    return find(tracer, Answer(batch_size, peak, {}, conclusion))


def model_of(scripts):
    programs = {size: joined([program_of(one.trace(size)) for one in scripts]) for size in (5, 12)}
    model = fit_size_model(programs)
    assert model is not None
    return model


def device_peak(script, size):
    return CARD.device_bytes(CARD.replay(script.trace(size)).peak)


@pytest.mark.parametrize("seed", range(5))
def test_extrapolated_sizes_give_the_breakdown_at_a_size_that_was_not_traced(seed):
    script = network(seed)
    found = find_at([script], [5, 12], model_of([script]), 77, device_peak(script, 77))
    assert found is not None and found.model is not None
    assert sum(found.breakdowns.whole.parts.values()) == device_peak(script, 77)


def test_without_a_model_it_is_made_from_the_trace_of_that_size():
    script = network(3)
    found = find_at([script], [77], None, 77, device_peak(script, 77))
    assert found is not None and found.model is None
    assert find_at([script], [5], None, 77, device_peak(script, 77)) is None


@pytest.mark.parametrize("seeds", [(1, 2), (2, 1), (4, 3)])
def test_of_several_cards_it_is_the_fullest(seeds):
    scripts = [network(seed) for seed in seeds]
    fullest = max(device_peak(script, 77) for script in scripts)
    for model, sizes in ((model_of(scripts), [5, 12]), (None, [77])):
        found = find_at(scripts, sizes, model, 77, fullest)
        assert found is not None and sum(found.breakdowns.whole.parts.values()) == fullest


def test_a_peak_that_no_trace_gives_has_no_breakdown():
    script = network(1)
    assert find_at([script], [5, 12], model_of([script]), 77, device_peak(script, 77) + 1) is None
