"""`audit`: what a command really does, against what it was asked to do. One trial, the loader's own batches untouched."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from brimful import command as commands
from brimful.decide.audit.findings import findings
from brimful.errors import UsageError
from brimful.values import Audit, Command, Effective, PhasePeak, Record, Setting, Source, Trial, TrialKind, TrialResult
from brimful.verbs import devices
from brimful.verbs.predict import PHASES, asked_batch_size, refuse_unreachable
from brimful.verbs.results import batches_per_step, loaders, require_steps
from brimful.verbs.session import Options, Session, opened

_STEPS = 12  # enough batches for remainders and repeats to show, and for a median of step times
_WARMUP_STEPS = 2


def audit(
    argv: Sequence[str],
    *,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    ranks: int | None = None,
    as_rank: int | None = None,
    device: str = "auto",
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
) -> Record:
    """Runs the command for some steps and reports what it did. Returns the record, whose `audit` is the answer.

    Raises UsageError where a placeholder stays open (an audit needs the values that are in use), and the errors of
    `verbs.results` when the command does not train.
    """
    options = options or Options()
    command, advice = devices.with_torch(commands.parse(tuple(argv)))
    given = dict(settings or {})
    asked_batch_size(command, given)
    values = _values(command, given)
    cards = devices.cards(gpu, gpu_memory, options.home, ranks, as_rank)
    chosen, accelerator = devices.choose(command, device, cards)
    budget = devices.budget_for(chosen, accelerator, options.budget)
    trial = Trial(
        command=command,
        settings=values,
        device=chosen,
        kind=TrialKind.AUDIT,
        steps=options.steps or _STEPS,
        warmup_steps=_WARMUP_STEPS,
        time_limit_s=options.time_limit_s,
    )
    with opened("audit", command, chosen, options, budget) as session:
        if advice:
            session.note(advice)
        sample = require_steps(session, session.run(trial, expected_total=1))
        devices.require_that_card(chosen, sample)
        session.keep(_audit(session, sample, {**command.given, **values}, budget))
    return session.record()


def _values(command: Command, given: dict[str, Setting]) -> dict[str, Setting]:
    values = {name: command.given[name] for name in commands.placeholders(command) if name in command.given} | given
    refuse_unreachable(command, given)
    for name in commands.placeholders(command):
        if name not in values:
            raise UsageError(
                problem=f"the command leaves {{{name}}} open",
                explanation="an audit needs the values that you use",
                suggestion=f"write the value in the command, or give it: --set {name}=64",
            )
    return values


def _audit(session: Session, sample: TrialResult, requested: dict[str, Setting], budget) -> Audit:
    return Audit(
        requested=requested,
        effective=effective(sample),
        findings=findings(sample, requested, budget, session.opened.machine),
        loading_share=sample.loading_share,
        step_s=statistics.median(sample.step_s) if sample.step_s else None,
        peak=sample.peak,
        phases=sample.phases,
        cards=_peaks_of_cards(sample),
        not_seen=tuple(name for name in PHASES if name not in sample.phases),
        peak_source=Source.PREDICTED if sample.trial.device.kind == "imaginary" else Source.MEASURED,
        notes=sample.notes,
    )


def effective(sample: TrialResult) -> Effective:
    """What the first rank's training loader gave, and how many samples went into a step over all ranks."""
    train = next(loaders(sample, "train"), None)
    given = [batch.samples for batch in train.batches if batch.samples is not None] if train else []
    return Effective(
        loader_batch_size=max(given, default=train.batch_size if train else None),
        batches_per_step=batches_per_step(sample),
        ranks=sample.trial.device.ranks or len(sample.reports),
        samples_per_step=sample.samples_per_step,
        samples_source=Source.MEASURED if train is not None else Source.ASSUMED,
    )


def _peaks_of_cards(sample: TrialResult) -> dict[str, PhasePeak]:
    """The peak of every imaginary card of every rank; {} where there is but one."""
    peaks = {f"rank {r.rank}, cuda:{card.index}": card.peak for r in sample.reports for card in r.cards}
    return peaks if len(peaks) > 1 else {}
