"""Where the memory went, at the batch size that a prediction is for: from its own trace, or by laws with a trace's notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from brimful.decide.memory.breakdown import Breakdowns, break_down
from brimful.decide.memory.categories import Annotated, annotate
from brimful.decide.memory.program import Program, program_of
from brimful.decide.memory.size_model import SizeModel
from brimful.values import Prediction
from brimful.verbs.imaginary import Tracer
from brimful_inside.simulator.trace import Trace


@dataclass(frozen=True)
class Found:
    """The breakdowns at a batch size, and what they were made from."""

    breakdowns: Breakdowns
    annotated: Annotated
    program: Program
    laws: SizeModel | None  # that hold at that batch size; None: it is a trace of it


def effective_batch_size(tracer: Tracer, batch_size: int | None) -> int | None:
    """What the loader really gives: no more than the data set has."""
    length = tracer.dataset_length()
    return batch_size if batch_size is None or length is None else min(batch_size, length)


def with_breakdown(tracer: Tracer, said: Prediction) -> tuple[Prediction, Found | None]:
    """The prediction with its breakdowns, and what they were made from; as it is where no trace gives its peak."""
    if said.peak is None:
        return said, None
    laws = tracer.conclusion.laws if tracer.conclusion is not None else None
    found = find(tracer, laws, effective_batch_size(tracer, said.batch_size), said.peak.device_bytes)
    if found is None:
        return said, None
    return replace(said, breakdown=found.breakdowns.whole, phase_breakdowns=found.breakdowns.phases), found


def find(tracer: Tracer, laws: SizeModel | None, batch_size: int | None, device_bytes: int) -> Found | None:
    """The breakdowns whose parts add up to `device_bytes`, the peak that was predicted; None where no trace gives it."""
    for program, sizes, annotated, used in _sources(tracer, laws, batch_size):
        if len(annotated.allocations) != len(sizes):
            continue
        card = tracer.card
        breakdowns = break_down(program, sizes, annotated, card.context_bytes, card.settings)
        if breakdowns is not None and sum(breakdowns.whole.parts.values()) == device_bytes:
            return Found(breakdowns, annotated, program, used)
    return None


Origin = tuple[Program, Sequence[int], Annotated, SizeModel | None]


def _sources(tracer: Tracer, laws: SizeModel | None, batch_size: int | None) -> Iterator[Origin]:
    if laws is not None and batch_size is not None and batch_size >= min(laws.fitted_at):
        fitted = laws.fitted_at[0]
        sizes = laws.sizes_at(batch_size)
        cards = tracer.cards(fitted)
        trace = tracer.trace(fitted)
        if cards:
            yield from _by_card([one.trace for one in cards], sizes, [births for _, births in laws.program.parts])
        elif trace is not None:
            yield laws.program, sizes, annotate(trace), laws
    if batch_size in tracer.samples:
        trace = tracer.trace(batch_size)
        traces = [one.trace for one in tracer.cards(batch_size)] or ([trace] if trace is not None else [])
        for one in traces:
            program = program_of(one)
            yield program, program.sizes, annotate(one), None


def _by_card(traces: Sequence[Trace], sizes: Sequence[int], births: Sequence[int]) -> Iterator[Origin]:
    """Of several cards each by itself: `sizes` are of all of them, one after another."""
    start = 0
    for trace, count in zip(traces, births, strict=False):
        yield program_of(trace), sizes[start : start + count], annotate(trace), None
        start += count
