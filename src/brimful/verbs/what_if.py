"""What would help most: changes that can be switched from outside are run on the imaginary card, others are estimated."""

from __future__ import annotations

from dataclasses import replace

from brimful.decide.memory import savings
from brimful.decide.memory.fit import LawPeaks
from brimful.decide.memory.program import program_of
from brimful.decide.memory.savings import Change
from brimful.decide.memory.size_model import fit_size_model
from brimful.measure.traces import read_trace
from brimful.values import NoSaving, Outcome, Prediction, Saving, Setting, Source, TrialResult, WhatIf
from brimful.verbs.imaginary import Tracer
from brimful.verbs.where import Found, effective_batch_size
from brimful_inside.simulator.annotations import Uses
from brimful_inside.simulator.trace import Trace

_NOTE = "what_if: "  # how the child's notes of what it switched begin
_OWN = "own "  # and where that is a switch of the model's own


def with_what_if(tracer: Tracer, said: Prediction, found: Found | None, wanted: bool | None) -> Prediction:
    """The prediction with what would help most. `wanted`: None runs it where the batch size does not fit.

    Where it was asked for, the largest batch size that would fit is worked out as well, by one more trace a change.
    """
    if found is None or said.peak is None or wanted is False or (wanted is None and said.verdict == "fits"):
        return said
    asked = effective_batch_size(tracer, said.batch_size)
    told = [*_estimates(tracer, said, found, asked), *savings.already(found.annotated)]
    sample = tracer.worst()
    report = sample.reports[0]
    accumulates = any(count > 1 for count in report.micro_batches_per_step)
    capability = said.gpu.capability
    for change in savings.changes_to_run(found.breakdowns.whole, found.annotated, capability, accumulates):
        told.append(_run(tracer, change, asked, said.peak.device_bytes, bool(wanted)))
    told += _smaller_evaluation(tracer, said, found, asked)
    helps = sorted((one for one in told if isinstance(one, Saving)), key=lambda saving: -saving.saved_bytes)
    others = tuple(one for one in told if isinstance(one, NoSaving))
    return replace(said, what_if=WhatIf(tuple(helps), others), seconds=tracer.session.seconds())


def _estimates(tracer: Tracer, said: Prediction, found: Found, asked: int | None) -> list[Saving | NoSaving]:
    assert said.peak is not None
    before, card = said.peak.device_bytes, tracer.card
    names = [optimizer.name for optimizer in tracer.worst().reports[0].optimizers]
    told: list[Saving | NoSaving | None] = [savings.eight_bit_states(card, found.breakdowns, names, before)]
    if found.laws is not None and asked is not None and found.breakdowns.whole.phase == "train":
        told += savings.micro_batches(card, found.laws, found.annotated, asked, before)
    return [one for one in told if one is not None]


def _run(tracer: Tracer, change: Change, asked: int | None, before: int, searches: bool) -> Saving | NoSaving:
    sample, trace = _trial(tracer, asked, change.what_if)
    what = savings.NAMES[change.code]
    if sample.outcome is not Outcome.COMPLETED or trace is None:
        return NoSaving(change.code, what, f"the command fails with it: {_failure(sample)}")
    how = change.how or _checkpointing(trace)
    if not how:
        return NoSaving(change.code, what, "no blocks that repeat were found, and no switch of the model's own")
    card = tracer.card
    after = card.device_bytes(replace(card, capacity_bytes=None).play(trace).peak)
    told = savings.judged(card, change.code, how, before, after, Source.PREDICTED)
    if not searches or not isinstance(told, Saving):
        return told
    return replace(told, largest_batch_size=_largest(tracer, change, asked, trace))


def _trial(
    tracer: Tracer, batch_size: int | None, what_if: str | None, **settings: Setting
) -> tuple[TrialResult, Trace | None]:
    """One trial of a what-if, on a card as large as it needs to be."""
    trial = next(iter(tracer.samples.values())).trial
    size = {} if batch_size is None else {"batch_size": batch_size}
    trial = replace(trial, settings={**trial.settings, **size, **settings}, capacity_bytes=None, what_if=what_if)
    sample = tracer.session.run(trial)
    return sample, read_trace(sample, tracer.session.folder)


def _failure(sample: TrialResult) -> str:
    if sample.failure is None:
        return sample.outcome.value.replace("_", " ")
    return f"{sample.failure.type}: {sample.failure.message.splitlines()[0] if sample.failure.message else ''}"


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


def _largest(tracer: Tracer, change: Change, asked: int | None, trace: Trace) -> int | None:
    """The largest batch size that would fit, by laws through this trace and one at a smaller size; None without laws."""
    conclusion = tracer.conclusion
    if asked is None or conclusion is None or conclusion.belief.ignores_batch_size:
        return None
    small = next((size for size in sorted(conclusion.traced) if size < asked), None)
    if small is None:
        return None
    sample, other = _trial(tracer, small, change.what_if)
    if sample.outcome is not Outcome.COMPLETED or other is None:
        return None
    laws = fit_size_model({small: program_of(other), asked: program_of(trace)})
    if laws is None or not laws.exact:
        return None
    limits = [n for n in (tracer.dataset_length(), tracer.session.options.max_batch_size) if n is not None]
    return LawPeaks(laws, tracer.card).largest(small, min(limits, default=None))


def _smaller_evaluation(tracer: Tracer, said: Prediction, found: Found, asked: int | None) -> list[Saving | NoSaving]:
    """Where evaluation sets the peak: half its batch, run where the command has a place for it, else by the laws."""
    assert said.peak is not None
    before = said.peak.device_bytes
    if found.breakdowns.whole.phase != "eval":
        return []
    size = tracer.settings.get("eval_batch_size")
    if isinstance(size, int) and size > 1:
        sample, trace = _trial(tracer, asked, None, eval_batch_size=size // 2)
        if sample.outcome is not Outcome.COMPLETED or trace is None:
            return []
        card = tracer.card
        after = card.device_bytes(replace(card, capacity_bytes=None).play(trace).peak)
        return [savings.judged(card, "eval-batch", f"an evaluation batch of {size // 2}", before, after, Source.PREDICTED)]
    if found.laws is None or asked is None:
        return []
    saving = savings.smaller_evaluation(tracer.card, found.laws, found.breakdowns, asked, before)
    return [saving] if saving is not None else []
