"""`tune`: the settings that train fastest within memory, each one run before it is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brimful import command as commands
from brimful.decide.speed.predicted import rates_of
from brimful.decide.tune.objective import default_objective
from brimful.decide.tune.plan import make_plan
from brimful.errors import UsageError
from brimful.values import Estimate, Objective, Outcome, PeakEstimate, Plan, Record, Setting, Source
from brimful.verbs import devices, imaginary, predicted_speed, tune_measured
from brimful.verbs.predict import asked_batch_size, takes_a_batch_size, values_of
from brimful.verbs.samples import rate_advice
from brimful.verbs.session import Options, opened


def tune(
    argv: Sequence[str],
    *,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    ranks: int | None = None,
    as_rank: int | None = None,
    device: str = "auto",
    objective: str | None = None,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
) -> Record:
    """Finds settings for the command. Returns the record, whose `plan` is the answer.

    Raises UsageError where the command takes no batch size or ignores it, DoesNotFit when no batch size fits, and the
    errors of `verbs.failures` when it does not train.
    """
    options = options or Options()
    command, advice = devices.with_torch(commands.parse(tuple(argv)))
    given = dict(settings or {})
    asked = asked_batch_size(command, given)
    if not takes_a_batch_size(command):
        raise commands.no_place_for_a_batch_size()
    cards = devices.cards(gpu, gpu_memory, options.home, ranks, as_rank)
    chosen, accelerator = devices.choose(command, device, cards)
    goal = _objective(objective, has_clock=chosen.gpu is None or rates_of(chosen.gpu) is not None)
    budget = devices.budget_for(chosen, accelerator, options.budget)
    open_settings = {"num_workers"} & set(commands.placeholders(command)) - set(given)
    others = {n: v for n, v in values_of(command, dict.fromkeys(open_settings, 0) | given).items() if n != "batch_size"}
    with opened("tune", command, chosen, options, budget, goal) as session:
        if advice:
            session.note(advice)
        if chosen.kind == "imaginary":
            tracer = imaginary.Tracer(session, command, chosen, budget, others)
            session.keep(_on_imaginary(tracer, goal, asked))
        else:
            task = tune_measured.Task(command, chosen, budget, goal, asked, others, tuple(open_settings))
            tune_measured.run(session, task)
    return session.record()


def _objective(name: str | None, has_clock: bool) -> Objective:
    if name is None:
        return default_objective(has_clock)
    if name not in list(Objective):
        raise UsageError(
            problem=f"--objective {name}",
            explanation="an objective is " + ", ".join(Objective),
            suggestion="fastest is the default where there is a clock",
        )
    if name == Objective.FASTEST and not has_clock:
        raise UsageError(
            problem="--objective fastest on a card of which only the memory is known",
            explanation="its rates are not known, so brimful cannot predict speed there",
            suggestion="name a card of the catalogue (see `brimful gpus`), leave the objective out, or tune on a real card",
        )
    return Objective(name)


def _on_imaginary(tracer: imaginary.Tracer, goal: Objective, asked: int | None) -> Plan:
    """By memory and the predicted speed: the knee (or the size asked for, or the largest), traced before it is named."""
    session = tracer.session
    conclusion = imaginary.search(tracer, asked)
    session.keep(conclusion.estimate)
    if conclusion.estimate.ignores_batch_size:
        raise imaginary.ignores_the_batch_size(tracer.command)
    largest, limited_by = conclusion.estimate.largest_batch_size, conclusion.estimate.limited_by
    if largest is None:
        raise imaginary.nothing_fits(tracer, conclusion)
    choice = predicted_speed.choose(tracer, goal, asked, largest, limited_by)
    confirmed = _confirm(tracer, choice.batch_size)
    if confirmed is None and choice.batch_size != largest:  # memory is not monotone in the batch size
        choice = predicted_speed.the_largest(tracer, largest, limited_by)
        confirmed = _confirm(tracer, largest)
    if choice.speed is not None:
        session.keep(predicted_speed.speed_estimate(choice.speed))
    size = choice.batch_size
    return make_plan(
        goal,
        tracer.command,
        dict(tracer.settings) | {"batch_size": size},
        session.results,
        {"batch_size": choice.why},
        requested={"batch_size": asked} if asked else None,
        verified=confirmed is not None,
        source=Source.PREDICTED,
        peak=_estimate(confirmed or conclusion.peak),
        speed=choice.samples_per_s,
        warnings=[*imaginary.search_notes(conclusion), *choice.warnings, *rate_advice(tracer.representative(), asked, size)],
    )


def _confirm(tracer: imaginary.Tracer, size: int) -> PeakEstimate | None:
    """The peak of a trace at the size itself, if it was seen to fit."""
    sample = tracer.sample(size)
    played = tracer.played(size, tracer.card)
    if sample.outcome is not Outcome.COMPLETED or played is None:
        return None
    return tracer.card.estimate(played.peak) if tracer.card.fits(played) else None


def _estimate(peak: PeakEstimate | None) -> Estimate | None:
    if peak is None:
        return None
    low, high = peak.device_interval_bytes
    return Estimate(peak.device_bytes, peak.source, low, high, peak.interval_basis)
