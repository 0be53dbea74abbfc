"""Where the memory went, at the batch size that a prediction is for: from its own trace, or from extrapolated sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from brimful.decide.memory.breakdown import Breakdowns, break_down
from brimful.decide.memory.categories import Annotated, annotate
from brimful.decide.memory.size_model import SizeModel
from brimful.verbs.imaginary import Tracer
from brimful.verbs.warnings import Answer
from brimful_inside.simulator.program import Program, program_of


@dataclass(frozen=True)
class Found:
    """The breakdowns at a batch size, and what they were made from."""

    breakdowns: Breakdowns
    annotated: Annotated
    program: Program
    model: SizeModel | None  # that holds at that batch size, on a single card; None: it is a trace of it


def find(tracer: Tracer, answer: Answer) -> Found | None:
    """The breakdowns whose parts add up to the predicted peak; None where no trace gives it."""
    card = tracer.card
    for program, sizes, annotated, model in _origins(tracer, answer) if answer.peak is not None else ():
        if len(annotated.allocations) != len(sizes):
            continue
        made = break_down(program, sizes, annotated, card.context_bytes, card.settings)
        if made is not None and answer.peak is not None and sum(made.whole.parts.values()) == answer.peak.device_bytes:
            return Found(made, annotated, program, model)
    return None


def _origins(tracer: Tracer, answer: Answer) -> Iterator[tuple[Program, Sequence[int], Annotated, SizeModel | None]]:
    """Programs with their sizes at the answer's batch size, each of one card."""
    model = answer.conclusion.size_model if answer.conclusion is not None else None
    batch_size = tracer.effective(answer.batch_size)
    if model is not None and batch_size is not None and batch_size >= min(model.fitted_at):
        sizes, start, cards = model.sizes_at(batch_size), 0, tracer.cards(model.fitted_at[0])
        for one, card in zip(cards, model.program.cards, strict=False):
            own = sizes[start : start + len(card.sizes)]
            start += len(card.sizes)
            alone = len(cards) == 1
            yield model.program if alone else program_of(one.trace), own, annotate(one.trace), model if alone else None
    if batch_size in tracer.samples:
        for one in tracer.cards(batch_size):
            program = program_of(one.trace)
            yield program, program.sizes, annotate(one.trace), None
