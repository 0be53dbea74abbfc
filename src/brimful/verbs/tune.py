"""`tune`: the settings that train fastest within memory, each one run before it is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brimful import command as commands
from brimful.decide.objective import default_objective
from brimful.decide.plan import make_plan
from brimful.errors import UsageError
from brimful.values import Advice, Estimate, Objective, Outcome, PeakEstimate, Plan, Record, Setting, Source
from brimful.verbs import devices, imaginary, interpreter, tune_measured
from brimful.verbs.predict import asked_batch_size, takes_a_batch_size, values_of
from brimful.verbs.seen import rate_advice
from brimful.verbs.session import Options, opened


def tune(
    argv: Sequence[str],
    *,
    gpu: str | None = None,
    gpu_memory: str | None = None,
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
    command, advice = interpreter.settle(commands.parse(tuple(argv)))
    given = dict(settings or {})
    asked = asked_batch_size(command, given)
    if not takes_a_batch_size(command):
        raise commands.no_place_for_a_batch_size()
    chosen, accelerator = devices.choose(command, device, devices.card(gpu, gpu_memory, options.home))
    goal = _objective(objective, has_clock=chosen.kind != "imaginary")
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
            saw=f"--objective {name}",
            means="an objective is " + ", ".join(Objective),
            do="fastest is the default where there is a clock",
        )
    if name == Objective.FASTEST and not has_clock:
        raise UsageError(
            saw="--objective fastest on an imaginary card",
            means="an imaginary card has no clock: nothing can be said about speed there",
            do="leave the objective out (largest is taken), or tune on a real card",
        )
    return Objective(name)


def _on_imaginary(tracer: imaginary.Tracer, goal: Objective, asked: int | None) -> Plan:
    """Memory alone: the largest batch size (or the one asked for, if it fits), traced before it is named."""
    session = tracer.session
    conclusion = imaginary.search(tracer, asked)
    session.keep(conclusion.belief)
    if conclusion.belief.ignores_batch_size:
        raise imaginary.ignores_the_batch_size(tracer.command)
    largest = conclusion.belief.largest_batch_size
    if largest is None:
        raise imaginary.nothing_fits(tracer, conclusion)
    size = min(asked, largest) if goal is Objective.FIT and asked else largest
    confirmed = _confirm(tracer, size)
    chosen = dict(tracer.settings) | {"batch_size": size}
    return make_plan(
        goal,
        tracer.command,
        chosen,
        session.samples,
        {"batch_size": _why(goal, conclusion.belief.limited_by, size, asked)},
        requested={"batch_size": asked} if asked else None,
        verified=confirmed is not None,
        source=Source.PREDICTED,
        peak=_estimate(confirmed or conclusion.peak),
        warnings=[
            *_notes(conclusion.notes),
            *filter(
                None, [_speed_was_not_judged(goal, size, tracer.dataset_length()), rate_advice(tracer.worst(), asked, size)]
            ),
        ],
    )


def _confirm(tracer: imaginary.Tracer, size: int) -> PeakEstimate | None:
    """The peak of a trace at the size itself, if it was seen to fit."""
    sample = tracer.sample(size)
    trace = tracer.trace(size)
    if sample.outcome is not Outcome.COMPLETED or trace is None:
        return None
    played = tracer.card.play(trace)
    return tracer.card.estimate(played.peak) if tracer.card.fits(played) else None


def _why(goal: Objective, limited_by: str | None, size: int, asked: int | None) -> str:
    if goal is Objective.FIT and size == asked:
        return "it fits as asked"
    limits = {"dataset": "the whole data set", "max_batch_size": "the maximum you gave"}
    return limits.get(limited_by or "", "the largest whose upper bound is within the budget")


def _speed_was_not_judged(goal: Objective, size: int, dataset_length: int | None) -> Advice | None:
    """The largest batch size is seldom the fastest, and one of the whole data set leaves one step an epoch."""
    if goal is not Objective.LARGEST:
        return None
    epoch = "; an epoch would be a single step" if dataset_length and size >= dataset_length else ""
    return Advice(
        "no-clock",
        f"{size:,} is the largest batch size that fits{epoch}",
        "an imaginary card has no clock: which size trains fastest, or learns best, was not judged",
        "tune on the card itself when you have it, or keep to --max-batch-size",
    )


def _estimate(peak: PeakEstimate | None) -> Estimate | None:
    if peak is None:
        return None
    low, high = peak.device_interval_bytes
    return Estimate(peak.device_bytes, peak.source, low, high, peak.interval_basis)


def _notes(notes: Sequence[str]) -> list[Advice]:
    return [Advice("search", note, "the answer rests on trials, not on laws of each allocation", "") for note in notes]
