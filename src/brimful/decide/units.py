"""Searching among the multiples of some size: those that split evenly over the cards of a process (nn.DataParallel), or those
that a script takes at all (timm's Mixup wants pairs).

Uneven sizes leave cards with shares that are rounded, and no allocation is a law of them; the last card's may be empty. So the
search goes by samples on each card: its sizes, here called units, stand for so many times as many samples.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from brimful.decide.memory.fit import Card
from brimful.decide.memory.search_traced import (
    FIRST_SIZE,
    MAX_TRACES,
    MemoryConclusion,
    Traced,
    search_largest,
)
from brimful.values import Limits, MemoryEstimate, Point

__all__ = ["search_in_units"]


def search_in_units(
    card: Card,
    limits: Limits,
    max_traces: int = MAX_TRACES,
    first_size: int = FIRST_SIZE,
    unit: int = 1,
    why: str = "multiples alone were searched",
) -> Generator[int, Traced, MemoryConclusion]:
    """As `search_largest`, among the multiples of `unit`, `why` in words. Raises ValueError as that does, in units."""
    if unit == 1:
        return (yield from search_largest(card, limits, max_traces, first_size))
    search = search_largest(card, _limits_in(limits, unit), max_traces, max(1, first_size // unit))
    size = next(search)
    while True:
        traced = yield size * unit
        length = traced.dataset_length
        try:
            size = search.send(replace(traced, dataset_length=None if length is None else max(1, length // unit)))
        except StopIteration as end:
            return _in_samples(end.value, unit, why)


def _limits_in(limits: Limits, unit: int) -> Limits:
    def units(samples: int | None) -> int | None:
        return None if samples is None else max(1, samples // unit)

    least = -(-limits.min_batch_size // unit)
    return replace(
        limits,
        dataset_length=units(limits.dataset_length),
        max_batch_size=units(limits.max_batch_size),
        min_batch_size=least,
    )


def _in_samples(conclusion: MemoryConclusion, unit: int, why: str) -> MemoryConclusion:
    laws = conclusion.laws
    if laws is not None:
        laws = replace(laws, per=unit, fitted_at=tuple(size * unit for size in laws.fitted_at))
    told = f"{why}; the sizes in what follows count {unit} samples each"
    return replace(
        conclusion,
        belief=_belief_in_samples(conclusion.belief, unit),
        traced=tuple(size * unit for size in conclusion.traced),
        laws=laws,
        notes=(told, *conclusion.notes) if conclusion.notes else (),
    )


def _belief_in_samples(belief: MemoryEstimate, unit: int) -> MemoryEstimate:
    def points(of: tuple[Point, ...]) -> tuple[Point, ...]:
        return tuple(replace(point, batch_size=point.batch_size * unit) for point in of)

    largest = belief.largest_batch_size
    return replace(
        belief,
        curve=points(belief.curve),
        probes=points(belief.probes),
        largest_batch_size=None if largest is None else largest * unit,
    )
