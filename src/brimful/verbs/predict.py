"""`predict`: will a command fit a card that need not be here, how much memory in which phase, the largest batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from brimful import command as commands
from brimful.decide.audit.leaks import memory_that_grows
from brimful.decide.memory.search_traced import MemoryConclusion
from brimful.decide.own_failures import CEILINGS
from brimful.decide.run.settings import ACCUMULATION
from brimful.errors import UsageError
from brimful.units import format_bytes, parse_batch_size
from brimful.values import Command, Diagnostic, Outcome, PeakEstimate, Prediction, Record, Setting, TrialResult
from brimful.verbs import devices, imaginary, interpreter, predicted_speed, seen, several, where
from brimful.verbs.session import Options, opened
from brimful.verbs.what_if import with_what_if

PHASES = ("train", "eval")


def predict(
    argv: Sequence[str],
    *,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    ranks: int | None = None,
    as_rank: int | None = None,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
    what_if: bool | None = None,
) -> Record:
    """Runs the command for a few steps on an imaginary card. Returns the record, whose `prediction` is the answer.

    `what_if`: whether what would save memory is tried; None tries it where the batch size that was asked for does not fit.
    With ``{batch_size}`` left open it answers for the largest that fits. Raises UsageError without a card, NoSuchDevice
    for an unknown one, DoesNotFit when no batch size fits and none was asked for, and the errors of `verbs.failures`.
    """
    options = options or Options()
    command, advice = interpreter.settle(commands.parse(tuple(argv)))
    given = dict(settings or {})
    asked = asked_batch_size(command, given)
    cards = devices.cards(gpu, gpu_memory, options.home, ranks, as_rank)
    if cards is None:
        raise UsageError(
            problem="no card was named",
            explanation="a prediction is for a card that need not be here",
            suggestion="name one: --gpu a100-40gb (see `brimful gpus`), or --gpu-memory 20GiB",
        )
    device, _ = devices.choose(command, "auto", cards)
    budget = devices.budget_for(device, None, options.budget)
    with opened("predict", command, device, options, budget) as session:
        if advice:
            session.note(advice)
        others = {name: value for name, value in values_of(command, given).items() if name != "batch_size"}
        tracer = imaginary.Tracer(session, command, device, budget, others)
        said = _by_search(tracer, asked) if takes_a_batch_size(command) else _as_it_stands(tracer)
        said, found = where.with_breakdown(tracer, said)
        said = with_what_if(tracer, said, found, what_if)
        session.keep(predicted_speed.with_speed(tracer, said))
    return session.record()


def asked_batch_size(command: Command, given: Mapping[str, Setting]) -> int | None:
    """The batch size that the command or --set names; None where it is left open. Raises UsageError for what is none."""
    value = given.get("batch_size", command.given.get("batch_size"))
    return None if value is None else parse_batch_size(str(value))


def takes_a_batch_size(command: Command) -> bool:
    """Whether a batch size can be given to the script: by a placeholder, a known flag, or brimful.setting inside."""
    if "batch_size" in commands.placeholders(command):
        return True
    return any(commands.says_its_batch_size_inside(text) for text in _texts(command))


def _texts(command: Command) -> list[str]:
    """The scripts that the command names, as far as they can be read."""
    paths = [Path(word) for word in command.argv if word.endswith(".py")]
    return [path.read_text(errors="replace") for path in paths if path.is_file()]


def refuse_unreachable(command: Command, given: Mapping[str, Setting]) -> None:
    """Raises UsageError for a given setting that has no placeholder, unless a script may ask for it (brimful.setting)."""
    texts = _texts(command)
    if texts and not any("brimful" in text for text in texts):
        commands.with_settings(command, given)


def values_of(command: Command, given: Mapping[str, Setting]) -> dict[str, Setting]:
    """What the trial's settings are: what was given, and what stood in the command. Raises UsageError for an open one."""
    refuse_unreachable(command, given)
    opened = commands.placeholders(command)
    values = {name: command.given[name] for name in opened if name in command.given} | dict(given)
    if ACCUMULATION in opened:
        values.setdefault(ACCUMULATION, 1)  # what a run starts with: a line that serves `run` serves here
    commands.fill(command, {"batch_size": 1} | values)
    return values


def _by_search(tracer: imaginary.Tracer, asked: int | None) -> Prediction:
    """The largest batch size by laws, and the peak at the one that was asked for."""
    session = tracer.session
    conclusion = imaginary.search(tracer, asked)
    session.keep(conclusion.belief)
    largest = conclusion.belief.largest_batch_size
    if asked is None:
        if largest is None or conclusion.peak is None:
            raise imaginary.nothing_fits(tracer, conclusion)
        return _prediction(tracer, conclusion, largest, conclusion.peak, conclusion.phases)
    effective = min(asked, tracer.dataset_length() or asked)
    peak, phases = _peak_at(tracer, conclusion, effective)
    return _no_smaller_than_what_fits(tracer, _prediction(tracer, conclusion, asked, peak, phases), effective)


def _no_smaller_than_what_fits(tracer: imaginary.Tracer, said: Prediction, batch_size: int) -> Prediction:
    """The search may have stopped below the size asked for, whose own trace shows that it fits."""
    most = tracer.session.options.max_batch_size
    if said.verdict != "fits" or (most is not None and batch_size > most) or (said.largest_batch_size or 0) >= batch_size:
        return said
    return replace(said, largest_batch_size=batch_size)


def _peak_at(
    tracer: imaginary.Tracer, conclusion: MemoryConclusion, batch_size: int
) -> tuple[PeakEstimate | None, dict[str, PeakEstimate]]:
    """The peak at a batch size: by verified laws, by its own trace, or by a trace without a limit where the card is full.

    Laws that were fitted near the edge, beyond a kink, say nothing of smaller sizes on its other side.
    """
    card = replace(tracer.card, capacity_bytes=None)  # how much it needs, where that is more than there is
    if conclusion.laws is not None and batch_size >= min(conclusion.laws.fitted_at) and not _may_fail(tracer, batch_size):
        played = conclusion.laws.play_at(batch_size, card.settings)
    else:
        sample = tracer.sample(batch_size)
        if sample.outcome is Outcome.OUT_OF_DEVICE_MEMORY:
            tracer.sample(batch_size, limitless=True)
        shown = several.played_at(tracer, batch_size, card)
        if shown is None:
            return None, {}
        played = shown
    return card.estimate(played.peak), {name: card.estimate(peaks) for name, peaks in played.phases.items()}


def _may_fail(tracer: imaginary.Tracer, batch_size: int) -> bool:
    """Whether the script failed by itself somewhere and nothing so large ran: laws of memory know nothing of that."""
    ran = [size for size, one in tracer.samples.items() if size is not None and one.outcome is Outcome.COMPLETED]
    failed = any(one.outcome in CEILINGS for one in tracer.samples.values())
    return failed and batch_size > max(ran, default=0)


def _as_it_stands(tracer: imaginary.Tracer) -> Prediction:
    """A command with no place for a batch size: it is run as it is, and nothing is said about others."""
    sample = tracer.sample(None)
    if sample.outcome is Outcome.OUT_OF_DEVICE_MEMORY:
        sample = tracer.sample(None, limitless=True)
    card = replace(tracer.card, capacity_bytes=None)
    played = several.played_at(tracer, None, card)
    peak, phases = None, {}
    if played is not None:
        peak, phases = card.estimate(played.peak), {name: card.estimate(p) for name, p in played.phases.items()}
    why = commands.no_place_for_a_batch_size()
    prediction = _prediction(tracer, None, None, peak, phases)
    advice = Diagnostic("no-batch-size", why.problem, "the prediction is for the command as it stands", why.suggestion)
    return replace(prediction, warnings=(*prediction.warnings, advice))


def _prediction(
    tracer: imaginary.Tracer,
    conclusion: MemoryConclusion | None,
    batch_size: int | None,
    peak: PeakEstimate | None,
    phases: dict[str, PeakEstimate],
) -> Prediction:
    sample = tracer.worst()
    report = sample.reports[0]
    gpu = tracer.gpu
    assert gpu is not None
    fits = peak is not None and peak.device_interval_bytes[1] <= tracer.budget.bytes
    belief = conclusion.belief if conclusion else None
    traced = tracer.samples.get(batch_size)
    return Prediction(
        verdict="fits" if fits else "out_of_memory",
        batch_size=batch_size,
        peak=peak,
        phases=phases,
        not_seen=tuple(name for name in PHASES if name not in phases),
        largest_batch_size=belief.largest_batch_size if belief else None,
        limited_by=belief.limited_by if belief else None,
        gpu=gpu,
        budget=tracer.budget,
        method="trace" if traced is not None else (belief.method if belief else "trace"),
        exact=traced is not None or belief is None or belief.exact,
        seconds=tracer.session.seconds(),
        approximations=report.approximations,
        worst_batch=report.worst_batch,
        warnings=(*_warnings(tracer, conclusion, batch_size, peak, fits), *_growth(tracer, batch_size, peak, phases, fits)),
        cards=several.card_peaks(tracer, conclusion, batch_size) if peak is not None else (),
        alone_of=tracer.device.ranks,
    )


def _warnings(
    tracer: imaginary.Tracer, conclusion: MemoryConclusion | None, asked: int | None, peak: PeakEstimate | None, fits: bool
) -> tuple[Diagnostic, ...]:
    found = []
    length = tracer.dataset_length()
    if asked and length and asked > length:
        found.append(_too_few_samples(asked, length, seen.drops_last(tracer.worst())))
    if peak is not None and peak.reserved_bytes == 0:
        found.append(
            Diagnostic(
                "nothing-on-the-card",
                "the script put nothing on the card",
                "it trains on the host, so no batch size says anything about the card",
                'move the model and its batches there: .to("cuda")',
            )
        )
    cap = seen.hidden_cap(tracer.samples, asked)
    if cap is not None:
        found.append(cap)
    if conclusion and conclusion.belief.ignores_batch_size:
        told = imaginary.ignores_the_batch_size(tracer.command)
        found.append(Diagnostic("ignores-batch-size", told.problem, told.explanation, told.suggestion))
    if not fits and peak is not None and peak.device_bytes <= tracer.budget.total_bytes:
        found.append(
            Diagnostic(
                "over-budget-under-card",
                f"{format_bytes(peak.device_bytes)} is under the card's {format_bytes(tracer.budget.total_bytes)}",
                f"and its upper bound {format_bytes(peak.device_interval_bytes[1])} is over the budget "
                f"({tracer.budget.why}): it may run, and may not",
                "a larger share can be allowed: --budget 100%",
            )
        )
    largest = conclusion.belief.largest_batch_size if conclusion else None
    if asked and largest and not fits and asked < largest:
        found.append(
            Diagnostic(
                "a-larger-one-fits",
                f"batch size {asked:,} does not fit, and {largest:,} does",
                "how allocations share segments changes from size to size, or the script goes another way there",
                f"{largest:,}, or a size well below this one",
            )
        )
    found += imaginary.told_by_the_search(conclusion) if conclusion else []
    found += several.about_ranks(tracer.worst())
    found += _from_the_trial(tracer.worst())
    return tuple(found)


def _too_few_samples(asked: int, length: int, drops_last: bool) -> Diagnostic:
    if drops_last:
        explanation = (
            f"with drop_last the loader gives no batch then and nothing is trained; the prediction is for batches of {length:,}"
        )
    else:
        explanation = f"the script would train with batches of {length:,}, and the prediction is for that"
    return Diagnostic(
        "batch-exceeds-dataset",
        f"a batch of {asked:,} was asked for and the data set has {length:,} samples",
        explanation,
        f"a batch size of {length:,} or less says what is meant",
    )


def _growth(
    tracer: imaginary.Tracer, asked: int | None, peak: PeakEstimate | None, phases: Mapping[str, PeakEstimate], fits: bool
) -> list[Diagnostic]:
    """What piles up from step to step or over an evaluation, by the completed trial whose batch size is nearest. What a whole
    evaluation keeps is much the same at every batch size."""
    completed = {size: one for size, one in tracer.samples.items() if one.outcome is Outcome.COMPLETED and one.reports}
    if not completed:
        return []
    size = min(completed, key=lambda n: abs(math.log((n or 1) / (asked or 1))))
    sample = completed[size]
    seen_bytes = sample.peak.device_bytes if sample.peak else None
    if not seen_bytes:
        return []
    other = f" (at a batch size of {size})" if size != asked else ""
    evaluation = phases.get("eval")
    holds = evaluation.allocated_bytes + peak.device_bytes - peak.reserved_bytes if evaluation and peak else None
    budget_bytes = tracer.budget.bytes if fits else None
    samples = seen.evaluation_samples(sample)
    found = memory_that_grows(sample.reports[0].growth, seen_bytes, holds, budget_bytes, samples)
    return [replace(advice, problem=advice.problem + other) for advice in found]


def _from_the_trial(sample: TrialResult) -> list[Diagnostic]:
    report = sample.reports[0]
    found = [Diagnostic("trial-note", note, "", "") for note in sample.notes]
    if report.approximations:
        shown = ", ".join(f"{name} ({count})" for name, count in sorted(report.approximations.items()))
        found.append(
            Diagnostic(
                "upper-bounds",
                f"what only data or a card can tell: {shown}",
                "an upper bound or an assumption was taken in its place",
                "the true peak can differ, and is lower as a rule",
            )
        )
    return found
