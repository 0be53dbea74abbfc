"""`audit`: what a command really does, against what it was asked to do. One trial, the loader's own
batches untouched; on an imaginary card the batches, and so the peaks, are those of `predict`."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from brimful import command as commands
from brimful.ask.reading import with_its_context
from brimful.decide.audit.findings import findings
from brimful.decide.audit.requests import requests_in
from brimful.decide.host_room import host_room
from brimful.decide.loaders_seen import batches_per_step, loaders, mean_share
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE
from brimful.errors import UntilStopped
from brimful.measure.traces import read_trace
from brimful.trials import devices
from brimful.trials.locate import locate
from brimful.trials.results import PHASES, error_of, require_steps
from brimful.trials.session import Options, Session
from brimful.trials.start import Start, start, takes
from brimful.values import (
    Audit,
    Command,
    Diagnostic,
    EffectiveBatch,
    Outcome,
    PhasePeak,
    Record,
    Setting,
    Source,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import Trace
from brimful_inside.wire import Ends

_STEPS = 12  # enough batches for remainders and repeats to show, and for a median of step times
_WARMUP_STEPS = 2
# A step that accumulates many batches shows as much in fewer steps.
_PASSES = 4 * (_STEPS + _WARMUP_STEPS)


def audit(
    argv: Sequence[str],
    *,
    device: str = "auto",
    host_policy: bool = False,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
    **card: Unpack[devices.CardNames],
) -> Record:
    """Runs the command for some steps and reports what it did. Returns the record, whose `audit` is
    the answer. `host_policy`: and what this machine has room for to load its data.

    Raises UsageError where a placeholder stays open (an audit needs the values that are in use),
    and the errors of `trials.results` when the command does not train.
    """
    began = start(argv, settings, options, device, devices.CardRequest(**card))
    is_placed = BATCH_SIZE in began.given and began.finds_places and not takes(began.command)
    trial = Trial(
        command=began.command,
        settings=began.values((BATCH_SIZE, EVAL_BATCH_SIZE) if is_placed else ()),
        device=began.device,
        kind=TrialKind.AUDIT,
        ends=Ends(
            steps=began.options.steps or _STEPS,
            warmup_steps=_WARMUP_STEPS,
            after_passes=None if began.options.steps else _PASSES,
        ),
    )
    with began.session("audit") as session:
        if is_placed:
            trial = replace(trial, command=_placed(session, began, trial))
        result = _run(session, trial)
        devices.require_that_card(began.device, result)
        trace = read_trace(result, session.folder)
        result = _with_context(result, trace)
        report = _audit(session, result, trial, trace)
        if host_policy:
            host, flags = devices.host_of(result.reports[0]), began.command.found_flags
            report = replace(report, host=host_room(host, result, report, flags))
        session.keep(report)
    return session.record()


def _run(session: Session, trial: Trial) -> TrialResult:
    """One that trained, if only for some of its steps. Raises the errors of `trials.results`."""
    before = len(session.results)  # of trials that found the place
    with UntilStopped() as work:
        session.run(trial, expected_total=1)
    result = next(iter(session.results[before:]), None)
    has_steps = result is not None and any(report.steps for report in result.reports)
    if work.stop is not None:
        if not has_steps:
            raise work.stop
        less = "what is said rests on the steps that ran by then"
        session.note(session.partial(work.stop, less))
    assert result is not None  # a session keeps each trial that ran
    if work.stop is None and result.outcome is Outcome.TIMED_OUT and has_steps:
        end = error_of(session, result)
        why = f"what is said rests on less: {end.explanation}"
        session.note(Diagnostic("partial", end.problem, why, end.suggestion))
    elif work.stop is None:
        require_steps(session, result)
    return result


def _placed(session: Session, began: Start, audited: Trial) -> Command:
    """The command with the batch size of --set where its script, which has no flag for it, has its
    number. Raises UsageError where it has none.
    """

    def trial(command: Command, batch_size: int | None) -> Trial:
        settings = {name: v for name, v in audited.settings.items() if name != BATCH_SIZE}
        settings |= {} if batch_size is None else {BATCH_SIZE: batch_size}
        return Trial(command, settings, began.device, TrialKind.AUDIT, ends=Ends(steps=1))

    assert began.asked is not None  # with --set
    wants, given = began.options.batch_size_from, began.given
    located = locate(session, began.command, trial, began.asked, wants, given)
    located.require_place(session)
    return located.command


def _audit(session: Session, result: TrialResult, trial: Trial, trace: Trace | None) -> Audit:
    requested = {**trial.command.given, **trial.settings}
    flags = trial.command.found_flags
    asked = tuple(
        replace(row, place=flags.get(row.setting, row.place))
        for row in requests_in(result)
        if requested.setdefault(row.setting, row.requested) == row.requested
    )
    requested = _with_accumulation(result, requested)
    kernels = trace.runs if trace is not None else ()
    peaks = {
        f"rank {r.rank}, cuda:{card.index}": card.peak for r in result.reports for card in r.cards
    }
    budget, machine = session.opened.budget, session.opened.machine
    worst = result.reports[0].worst_batch
    of_others = (worst.what,) if worst is not None and worst.mean_samples is not None else ()
    return Audit(
        requested=requested,
        effective=_effective(result),
        findings=findings(result, requested, budget, machine, asked, kernels),
        loading_share=result.loading_share,
        step_s=statistics.median(result.step_s) if result.step_s else None,
        peak=result.peak,
        phases=result.phases,
        cards=peaks if len(peaks) > 1 else {},
        not_seen=tuple(name for name in PHASES if name not in result.phases),
        peak_source=Source.PREDICTED
        if result.trial.device.kind == "imaginary"
        else Source.MEASURED,
        notes=(*result.notes, *of_others),
        asked=asked,
    )


def _with_accumulation(result: TrialResult, requested: dict[str, Setting]) -> dict[str, Setting]:
    """The settings asked for, with the accumulation that follows from the samples asked for in a
    whole update.
    """
    samples, batches = result.samples_per_step, batches_per_step(result)
    if "accumulation" in requested or not samples or not batches:
        return requested
    if not commands.asks_in_all(result.trial.command, samples):
        return requested
    return {**requested, "accumulation": round(batches)}


def _with_context(result: TrialResult, trace: Trace | None) -> TrialResult:
    """On an imaginary card, device peaks as `predict` has them: with the context that this program
    has there.
    """
    gpu = result.trial.device.gpu
    if gpu is None or trace is None:
        return result
    context = with_its_context(gpu, result, program_of(trace)).context_bytes
    more = int(context.value - gpu.context_bytes.value)

    def moved(peak: PhasePeak) -> PhasePeak:
        device = peak.device_bytes
        return peak if device is None else replace(peak, device_bytes=device + more)

    return replace(
        result,
        peak=moved(result.peak) if result.peak else None,
        phases={name: moved(peak) for name, peak in result.phases.items()},
        reports=tuple(
            replace(report, cards=[replace(card, peak=moved(card.peak)) for card in report.cards])
            for report in result.reports
        ),
    )


def _effective(result: TrialResult) -> EffectiveBatch:
    """What the first rank's training loader gives, and how many samples go into a step over all
    ranks.
    """
    train = next(loaders(result, "train"), None)
    given = [batch.samples for batch in train.batches if batch.samples is not None] if train else []
    share = mean_share(result.reports[0])
    largest = max(given, default=train.batch_size if train else None)
    return EffectiveBatch(
        loader_batch_size=round(largest * share) if largest is not None else None,
        batches_per_step=batches_per_step(result),
        ranks=result.trial.device.ranks or len(result.reports),
        samples_per_step=round(result.samples_per_step * share)
        if result.samples_per_step is not None
        else None,
        samples_source=Source.ASSUMED
        if train is None
        else Source.MEASURED
        if share == 1
        else Source.ESTIMATE,
    )
