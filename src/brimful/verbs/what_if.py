"""Where the memory went at the predicted batch size, and what would help: switched on the imaginary card, or estimated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from brimful.decide.memory import savings
from brimful.decide.memory.breakdown import Annotated, Breakdowns, annotate, break_down
from brimful.decide.memory.fit import ExtrapolatedPeaks
from brimful.decide.memory.savings import Change
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from brimful.measure.traces import read_trace
from brimful.values import NoSaving, Outcome, Saving, Setting, Source, TrialResult, WhatIf
from brimful.verbs.imaginary import Tracer
from brimful.verbs.warnings import Answer
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.trace import Trace, Uses

_NOTE = "what_if: "  # how the child's notes of what it switched begin
_OWN = "own "  # and where that is a switch of the model's own


@dataclass(frozen=True)
class Found:
    """The breakdowns at a batch size, and what they were made from."""

    breakdowns: Breakdowns
    annotated: Annotated
    model: SizeModel | None  # that holds at that batch size, on a single card; None: it is a trace of it


def find(tracer: Tracer, answer: Answer) -> Found | None:
    """The breakdowns whose parts add up to the predicted peak; None where no trace gives it."""
    card, peak = tracer.card, answer.peak
    origins = list(_origins(tracer, answer)) if peak is not None else []
    for capacity, (program, sizes, annotated, model) in product((card.capacity_bytes, None), origins):
        if len(annotated.allocations) != len(sizes):
            continue
        made = break_down(program, sizes, annotated, card.context_bytes, card.settings, capacity)
        if made is not None and peak is not None and sum(made.whole.parts.values()) == peak.device_bytes:
            return Found(made, annotated, model)
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
    if batch_size in tracer.results:
        for one in tracer.cards(batch_size):
            program = program_of(one.trace)
            yield program, program.sizes, annotate(one.trace), None


def what_would_help(tracer: Tracer, answer: Answer, found: Found, searches: bool) -> WhatIf:
    """What would lower the peak of an answer that has one.

    `searches`: the largest batch size that would fit is worked out as well, by one more trace a change.
    """
    assert answer.peak is not None
    before, asked = answer.peak.device_bytes, tracer.effective(answer.batch_size)
    changes, used = savings.changes_to_run(found.annotated, tracer.gpu.capability)
    results = [
        *_estimates(tracer, found, asked, before),
        *used,
        *(_run(tracer, answer, change, before, searches) for change in changes),
        *_smaller_evaluation(tracer, found, asked, before),
    ]
    helps = sorted((one for one in results if isinstance(one, Saving)), key=lambda saving: -saving.saved_bytes)
    return WhatIf(tuple(helps), tuple(one for one in results if isinstance(one, NoSaving)))


def _estimates(tracer: Tracer, found: Found, asked: int | None, before: int) -> list[Saving | NoSaving]:
    names = [optimizer.name for optimizer in tracer.representative().reports[0].optimizers]
    states = savings.eight_bit_states(tracer.card, found.breakdowns, names, before)
    results = [states] if states is not None else []
    if found.model is not None and asked is not None and found.breakdowns.whole.phase == "train":
        results += savings.micro_batches(tracer.card, found.model, found.annotated, asked, before)
    return results


def _run(tracer: Tracer, answer: Answer, change: Change, before: int, searches: bool) -> Saving | NoSaving:
    asked = tracer.effective(answer.batch_size)
    trial_result, trace = _trial(tracer, asked, change.what_if)
    what = savings.NAMES[change.code]
    if trial_result.outcome is not Outcome.COMPLETED or trace is None:
        return NoSaving(change.code, what, f"the command fails with it: {_failure(trial_result)}")
    how = change.how or _checkpointing(trace)
    if not how:
        return NoSaving(change.code, what, "no blocks that repeat were found, and no switch of the model's own")
    result = savings.judged(tracer.card, change.code, how, before, _device_bytes(tracer, trace), Source.PREDICTED)
    if not searches or asked is None or not isinstance(result, Saving):
        return result
    return replace(result, largest_batch_size=_largest(tracer, answer, change, asked, trace))


def _trial(
    tracer: Tracer, batch_size: int | None, what_if: str | None, **settings: Setting
) -> tuple[TrialResult, Trace | None]:
    """One trial of a what-if, on a card as large as it needs to be."""
    trial = next(iter(tracer.results.values())).trial
    size = {} if batch_size is None else {"batch_size": batch_size}
    trial = replace(trial, settings={**trial.settings, **size, **settings}, capacity_bytes=None, what_if=what_if)
    trial_result = tracer.session.run(trial)
    return trial_result, read_trace(trial_result, tracer.session.folder)


def _device_bytes(tracer: Tracer, trace: Trace) -> int:
    return tracer.card.device_bytes(tracer.card.replay(trace, None).peak)


def _failure(trial_result: TrialResult) -> str:
    if trial_result.failure is None:
        return trial_result.outcome.value.replace("_", " ")
    return (
        f"{trial_result.failure.type}: {trial_result.failure.message.splitlines()[0] if trial_result.failure.message else ''}"
    )


def _checkpointing(trace: Trace) -> str:
    """What to write, by what the child found to switch; "" where it found nothing."""
    found = [note.name.removeprefix(_NOTE) for _, note in trace.notes if isinstance(note, Uses) and note.name.startswith(_NOTE)]
    costs = "; each forward pass is done twice then"
    own = next((name.removeprefix(_OWN) for name in found if name.startswith(_OWN)), "")
    if own:
        return own + costs
    if not found:
        return ""
    return f"torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for each of the {', '.join(found)}{costs}"


def _largest(tracer: Tracer, answer: Answer, change: Change, asked: int, trace: Trace) -> int | None:
    """The largest batch size that would fit, extrapolated from this trace and one at a smaller size; None if that fails."""
    conclusion = answer.conclusion
    if conclusion is None or conclusion.estimate.ignores_batch_size:
        return None
    small = next((size for size in sorted(conclusion.traced) if size < asked), None)
    if small is None:
        return None
    trial_result, other = _trial(tracer, small, change.what_if)
    if trial_result.outcome is not Outcome.COMPLETED or other is None:
        return None
    model = fit_size_model({small: program_of(other), asked: program_of(trace)})
    if model is None or not model.exact:
        return None
    limits = [n for n in (tracer.dataset_length(), tracer.session.options.max_batch_size) if n is not None]
    return ExtrapolatedPeaks(model, tracer.card).largest(small, min(limits, default=None))


def _smaller_evaluation(tracer: Tracer, found: Found, asked: int | None, before: int) -> list[Saving | NoSaving]:
    """Where evaluation sets the peak: half its batch, run where the command has a place for it, else extrapolated."""
    if found.breakdowns.whole.phase != "eval":
        return []
    size = tracer.settings.get("eval_batch_size")
    if isinstance(size, int) and size > 1:
        trial_result, trace = _trial(tracer, asked, None, eval_batch_size=size // 2)
        if trial_result.outcome is not Outcome.COMPLETED or trace is None:
            return []
        how, after = f"an evaluation batch of {size // 2}", _device_bytes(tracer, trace)
        return [savings.judged(tracer.card, "eval-batch", how, before, after, Source.PREDICTED)]
    if found.model is None or asked is None:
        return []
    saving = savings.smaller_evaluation(tracer.card, found.model, found.breakdowns, asked, before)
    return [saving] if saving is not None else []
