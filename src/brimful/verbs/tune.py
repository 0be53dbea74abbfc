"""`tune`: the settings that train fastest within memory, each one run before it is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from brimful import command as commands
from brimful.decide.loading import EVAL_TIMES, POLICIES
from brimful.decide.memory.search_traced import NOT_FOLLOWED, MemoryConclusion
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS
from brimful.decide.speed.predicted import rates_of
from brimful.decide.tune.plan import make_plan
from brimful.decide.tune.sizes import sizes_to_show, tried_sizes
from brimful.errors import Interrupted, TimeIsUp, UsageError
from brimful.units import format_share
from brimful.values import (
    Diagnostic,
    Estimate,
    Objective,
    Outcome,
    PeakEstimate,
    Plan,
    PredictedSpeed,
    Record,
    Setting,
    Source,
    SpeedEstimate,
    TriedSize,
)
from brimful.verbs import imaginary, tune_measured, tune_task
from brimful.verbs.imaginary import Tracer
from brimful.verbs.results import ignores_the_batch_size
from brimful.verbs.session import Options
from brimful.verbs.start import Start, start, takes
from brimful.verbs.step_speed import FIXED_TOTAL, speed_of
from brimful.verbs.tune_plan import rate_advice


def tune(
    argv: Sequence[str],
    *,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    ranks: int | None = None,
    as_rank: int | None = None,
    device: str = "auto",
    objective: str | None = None,
    host_policy: str = "measured",
    strict: bool = False,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
) -> Record:
    """Finds settings for the command. Returns the record, whose `plan` is the answer.

    `host_policy` and `strict`: `brimful.decide.loading`, for the loader on this machine.

    Raises UsageError where the command takes no batch size or ignores it, DoesNotFit when no batch
    size fits, and the errors of `verbs.results` when it does not train.
    """
    began = start(argv, settings, options, device, gpu, gpu_memory, ranks, as_rank)
    if not takes(began.command) and not began.finds_places:
        raise commands.no_place_for_a_batch_size()
    if host_policy not in POLICIES:
        raise UsageError(
            f"--host-policy {host_policy}",
            "there is no such policy",
            f"name one of {', '.join(POLICIES)}",
        )
    goal = _objective(
        objective, has_clock=began.device.gpu is None or rates_of(began.device.gpu) is not None
    )
    on_imaginary = began.device.kind == "imaginary"
    if on_imaginary:
        others = began.other_values(num_workers=0)
    else:
        began = replace(began, command=commands.opened(began.command, WORKERS))
        others = began.other_values((BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS), num_workers=0)
    with began.session("tune", goal) as session:
        session.limits_the_whole = True
        if on_imaginary:
            tracer = Tracer(session, began.command, began.device, began.budget, others)
            noted: list[Diagnostic] = []
            asked = began.asked if takes(began.command) else _without_a_flag(tracer, began, noted)
            try:
                session.keep(_on_imaginary(tracer, goal, asked, noted))
            except (Interrupted, KeyboardInterrupt, TimeIsUp) as stop:
                session.keep(_largest_so_far(tracer, goal, asked, stop))
        else:
            tune_measured.run(session, tune_task.Task(began, goal, others, host_policy, strict))
    return session.record()


_FOLLOWS = {
    "eval_batch_size": f"{EVAL_TIMES} × the batch size: evaluation keeps no activations",
    "num_workers": "loading is not predicted: tune on the machine that trains",
}


def _objective(name: str | None, has_clock: bool) -> Objective:
    """By default speed where it can be measured or predicted; else, where only the memory is known,
    the largest that fits.
    """
    if name is None:
        return Objective.FASTEST if has_clock else Objective.LARGEST
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
            suggestion="name a card of the catalogue (see `brimful gpus`), leave the objective "
            "out, "
            "or "
            "tune on a real card",
        )
    return Objective(name)


def _without_a_flag(tracer: Tracer, began: Start, noted: list[Diagnostic]) -> int:
    """The script's own batch size, or the one given; from here on it is set where its number
    stands.
    """
    located = tracer.locate(began.asked, began.given)
    if located.place is None:
        tracer.result(None)
        raise commands.no_place_for_a_batch_size(located.why)
    noted += [located.note] if located.note else []
    return began.asked or located.place.number


def _on_imaginary(
    tracer: Tracer, goal: Objective, asked: int | None, noted: Sequence[Diagnostic] = ()
) -> Plan:
    """By memory and the predicted speed: the knee (or the requested size, or the largest), traced
    before it is named.
    """
    session = tracer.session
    conclusion = imaginary.search(tracer, asked)
    if conclusion.estimate.ignores_batch_size or conclusion.estimate.limited_by == NOT_FOLLOWED:
        raise ignores_the_batch_size(tracer.command)
    largest, limited_by = conclusion.estimate.largest_batch_size, conclusion.estimate.limited_by
    if largest is None:
        raise imaginary.nothing_fits(tracer, conclusion)
    choice = _choose(tracer, goal, asked, largest, limited_by)
    confirmed = _confirm(tracer, choice.batch_size)
    if (
        confirmed is None and choice.batch_size != largest
    ):  # memory is not monotone in the batch size
        choice = _the_largest(tracer, largest, limited_by)
        confirmed = _confirm(tracer, largest)
    if choice.speed is not None:
        speed = choice.speed
        session.keep(
            SpeedEstimate(
                speed.curve, speed.best_batch_size, speed.knee_batch_size, None, speed.tolerance
            )
        )
    warnings = (
        *noted,
        *imaginary.search_notes(conclusion),
        *choice.warnings,
        *rate_advice(tracer.representative(), asked, choice.batch_size),
    )
    return _plan(
        tracer,
        goal,
        asked,
        choice.batch_size,
        choice.why,
        confirmed,
        speed=choice.samples_per_s,
        warnings=warnings,
        sizes=_sizes(tracer, conclusion, choice, asked),
    )


def _plan(
    tracer: Tracer,
    goal: Objective,
    asked: int | None,
    size: int,
    why: str,
    peak: PeakEstimate | None,
    **more: Any,
) -> Plan:
    """The plan for a batch size; `peak`: of a trace at it that fits, None where there is none."""
    return make_plan(
        goal,
        tracer.command,
        tracer.settings_at(size),
        tracer.session.results,
        {"batch_size": why, **_FOLLOWS},
        requested={"batch_size": asked} if asked else None,
        verified=peak is not None,
        source=Source.PREDICTED,
        peak=_estimate(peak),
        **more,
    )


def _largest_so_far(
    tracer: Tracer, goal: Objective, asked: int | None, stop: BaseException
) -> Plan:
    """A partial plan: the requested size, or the largest, of those that were traced and fit. Raises
    `stop` where none does.
    """
    done = [
        size
        for size, one in tracer.results.items()
        if size is not None and one.outcome is Outcome.COMPLETED
    ]
    plays = {
        size: play
        for size in done
        if (play := tracer.play(size)) is not None and tracer.card.fits(play)
    }
    if not plays:
        raise stop
    size = asked if asked in plays else max(plays)
    why = "the requested size fits" if size == asked else "the largest traced so far that fits"
    ended = tune_task.ended_early(tracer.session, stop)
    warnings = tune_task.partial_advice(ended, f"batch size {size:,}, which was traced and fits")
    return _plan(
        tracer,
        goal,
        asked,
        size,
        why,
        tracer.card.peak(plays[size]),
        partial=ended,
        warnings=warnings,
    )


def _sizes(
    tracer: Tracer, conclusion: MemoryConclusion, choice: _Choice, asked: int | None
) -> tuple[TriedSize, ...]:
    """Powers of two around the largest, and what was traced or requested: peaks by the traces, else
    by the sizes of allocations extrapolated from them."""
    largest, card, model = (
        conclusion.estimate.largest_batch_size or 1,
        tracer.card,
        conclusion.size_model,
    )
    speed = choice.speed or speed_of(tracer, largest, largest)
    curve = () if isinstance(speed, Diagnostic) else speed.curve
    peaks, fitting = {}, {}
    spills = conclusion.estimate.limited_by == "budget"
    for size in sizes_to_show(largest, [asked, choice.batch_size, *tracer.results], spills):
        traced = tracer.results.get(size)
        if traced is not None and traced.outcome is Outcome.COMPLETED:
            play = tracer.play(size)
        else:
            extrapolated = model is not None and size >= min(model.fitted_at)
            play = (
                partial(model.replay_at, size, card.settings)
                if model is not None and extrapolated
                else None
            )
        if play is None and traced is None:
            continue  # nothing is known of it
        if play is not None:
            peaks[size] = _estimate(card.peak(play))
        fits = play is not None and card.fits(play)
        fitting[size] = fits and (traced is None or traced.outcome is Outcome.COMPLETED)
    rates = {point.batch_size: point.value for point in curve}
    return tried_sizes(list(tracer.results.values()), peaks, rates, fitting, fitting)


def _confirm(tracer: Tracer, size: int) -> PeakEstimate | None:
    """The peak of a trace at the size itself, if it fits."""
    completed = tracer.result(size).outcome is Outcome.COMPLETED
    card, play = tracer.card, tracer.play(size)
    return card.peak(play) if completed and play is not None and card.fits(play) else None


def _estimate(peak: PeakEstimate | None) -> Estimate | None:
    if peak is None:
        return None
    low, high = peak.device_interval_bytes
    return Estimate(peak.device_bytes, peak.source, low, high, peak.interval_basis)


@dataclass(frozen=True)
class _Choice:
    """A batch size with the reason it was taken, and what is predicted of its speed."""

    batch_size: int
    why: str
    speed: PredictedSpeed | None = None
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def samples_per_s(self) -> Estimate | None:
        points = self.speed.curve if self.speed is not None else ()
        return next((point.value for point in points if point.batch_size == self.batch_size), None)


def _choose(
    tracer: Tracer, goal: Objective, asked: int | None, largest: int, limited_by: str | None
) -> _Choice:
    """FASTEST takes the predicted knee, FIT the requested size if it fits; LARGEST, and any other,
    the largest.
    """
    if goal is Objective.FIT and asked is not None and asked <= largest:
        return _Choice(asked, "it fits as asked")
    if goal is not Objective.FASTEST:
        return _the_largest(tracer, largest, limited_by)
    speed = speed_of(tracer, largest, largest)
    if isinstance(speed, Diagnostic):
        return _the_largest(tracer, largest, limited_by, speed)
    knee, best = speed.knee_batch_size, speed.best_batch_size
    if knee is None or best is None:
        why = FIXED_TOTAL if FIXED_TOTAL in speed.notes else "too few sizes were traced for a curve"
        nothing = Diagnostic(
            "no-clock", why, "so no speed is predicted at sizes that were not traced", ""
        )
        return _the_largest(tracer, largest, limited_by, nothing)
    why = "predicted to be the fastest that fits"
    if knee != best:
        why = (
            f"predicted: the smallest size within {format_share(speed.tolerance)} of the fastest "
            f"that fits, {best:,}"
        )
    return _Choice(knee, why, speed, (_predicted(speed, knee),))


def _the_largest(
    tracer: Tracer, largest: int, limited_by: str | None, *found: Diagnostic
) -> _Choice:
    """The largest that fits, with a warning of what brimful did not judge."""
    within = "the largest whose upper bound is within the budget"
    limits = {
        "dataset": "the whole data set",
        "max_batch_size": "the maximum you gave",
        "budget": within,
    }
    why = limits.get(limited_by or "budget", f"the largest that ran; limited by {limited_by}")
    length = tracer.dataset_length()
    epoch = "; an epoch would be a single step" if length and largest >= length else ""
    advice = Diagnostic(
        "speed-not-judged",
        f"{largest:,} is the largest batch size that fits{epoch}",
        "brimful did not judge which size trains fastest, or learns best",
        "tune on the card itself when you have it, or keep to --max-batch-size",
    )
    return _Choice(largest, why, None, (*found, advice))


def _predicted(speed: PredictedSpeed, knee: int) -> Diagnostic:
    """What a predicted knee is worth, and where else it may lie."""
    low, high = speed.knee_interval or (knee, knee)
    between = (
        f" It lies between {low:,} and {high:,}, as the host there is twice as fast or half as "
        "fast."
    )
    left_out = "".join(f"; {note}" for note in speed.notes)
    return Diagnostic(
        "predicted-speed",
        f"the knee at {knee:,} is predicted, not measured: the time of each kernel comes from "
        "its arithmetic and bytes",
        f"Where it lies is known better than how fast it is.{between if low < high else ''} "
        f"Loading is not in it{left_out}.",
        "tune on the card itself when you have it",
    )
