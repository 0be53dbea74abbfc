"""`tune`: the settings with the highest throughput within memory, each run before it is named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from brimful import command as commands
from brimful.decide.loading import EVAL_TIMES, POLICIES
from brimful.decide.memory.search_traced import NOT_FOLLOWED
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS
from brimful.decide.speed.predicted import rates_of
from brimful.decide.tune.plan import make_plan
from brimful.decide.tune.sizes import sizes_to_show
from brimful.errors import CUT_SHORT, UsageError
from brimful.show.text import limited_text
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
    SpeedEstimate,
)
from brimful.verbs import imaginary, tune_measured, tune_plan
from brimful.verbs.answers import estimate_of, sizes_of
from brimful.verbs.devices import CardRequest
from brimful.verbs.imaginary import CardView, view_of
from brimful.verbs.results import ignores_the_batch_size
from brimful.verbs.session import Options
from brimful.verbs.start import Start, start, takes
from brimful.verbs.step_speed import FIXED_TOTAL, largest_with_a_step, speed_of
from brimful.verbs.trials import Trials

_BY_STEPS = "steps"  # in place of what limits the largest that fits


def tune(
    argv: Sequence[str],
    *,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    ranks: int | None = None,
    as_rank: int | None = None,
    link: str | None = None,
    device: str = "auto",
    objective: str | None = None,
    host_policy: str = "measured",
    strict: bool = False,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
) -> Record:
    """Finds settings for the command. Returns the record, whose `plan` is the answer.

    `host_policy` and `strict`: `brimful.decide.loading`, for the
    loader on this machine.

    Raises UsageError where the command takes no batch size or ignores it, DoesNotFit when no batch
    size fits, and the errors of `verbs.results` when it does not train.
    """
    began = start(
        argv, settings, options, device, CardRequest(gpu, gpu_memory, ranks, as_rank, link)
    )
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
    if began.device.kind == "imaginary":
        others = began.other_values(num_workers=0)
    else:
        began = replace(began, command=commands.opened(began.command, WORKERS))
        others = began.other_values((BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS), num_workers=0)
    with began.session("tune", goal) as session:
        session.limits_the_whole = True
        if began.device.kind == "imaginary":
            view = view_of(session, began, others)
            noted: list[Diagnostic] = []
            asked = began.asked
            if not takes(began.command):
                asked = _without_a_flag(view.trials, began, noted)
            try:
                session.keep(_on_imaginary(view, goal, asked, noted))
            except CUT_SHORT as stop:
                session.keep(_largest_so_far(view, goal, asked, stop))
        else:
            task = tune_plan.Task(began, goal, others, host_policy, strict)
            tune_measured.run(session, task)
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
        return Objective.THROUGHPUT if has_clock else Objective.LARGEST
    if name not in list(Objective):
        raise UsageError(
            problem=f"--objective {name}",
            explanation="an objective is " + ", ".join(Objective),
            suggestion="leave it out: brimful chooses throughput wherever it knows the speed",
        )
    if Objective(name) is Objective.THROUGHPUT and not has_clock:
        raise UsageError(
            problem=f"--objective {name} on a card of which only the memory is known",
            explanation="without the card's rates brimful cannot predict speed",
            suggestion="name a card of the catalogue (see `brimful gpus`), leave the objective "
            "out, or tune on a real card",
        )
    return Objective(name)


def _without_a_flag(trials: Trials, began: Start, noted: list[Diagnostic]) -> int:
    """The script's own batch size, or the one given; from here on it is set where its number
    stands.
    """
    located = trials.locate(began.asked, began.given)
    if located.place is None:
        trials.result(None)
        raise commands.no_place_for_a_batch_size(located.why)
    noted += [located.note] if located.note else []
    return began.asked or located.place.number


def _on_imaginary(
    view: CardView,
    goal: Objective,
    asked: int | None,
    noted: Sequence[Diagnostic] = (),
) -> Plan:
    """By memory and the predicted speed: the knee (or the requested size, or the largest), traced
    before it is named.
    """
    conclusion = imaginary.search(view, asked)
    estimate = conclusion.estimate
    if estimate.ignores_batch_size or estimate.limited_by == NOT_FOLLOWED:
        raise ignores_the_batch_size(view.trials.command)
    largest = estimate.largest_batch_size
    if largest is None:
        raise imaginary.nothing_fits(view, conclusion)
    choice = _choose(view, goal, asked, largest, estimate.limited_by)
    confirmed = _confirm(view, choice.batch_size)
    if confirmed is None and choice.batch_size != largest:
        # Memory is not monotone in the batch size.
        choice = _the_largest(view.trials, largest, estimate.limited_by)
        confirmed = _confirm(view, largest)
    speed = choice.speed
    if speed is not None:
        best, knee = speed.best_batch_size, speed.knee_batch_size
        view.trials.session.keep(SpeedEstimate(speed.curve, best, knee, None, speed.tolerance))
    spills = estimate.limited_by == "budget"
    shown = sizes_to_show(largest, [asked, choice.batch_size], spills)
    return _plan(
        view,
        goal,
        asked,
        choice,
        confirmed,
        warnings=(
            *noted,
            *imaginary.search_notes(conclusion),
            *choice.warnings,
            *tune_plan.rate_advice(view.trials.representative(), asked, choice.batch_size),
        ),
        sizes=sizes_of(view, conclusion, shown),
    )


@dataclass(frozen=True)
class _Choice:
    """A batch size with the reason it was taken, and what is predicted of its speed."""

    batch_size: int
    why: str
    speed: PredictedSpeed | None = None
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def samples_per_s(self) -> Estimate | None:
        if self.speed is not None and self.speed.batch_size == self.batch_size:
            return self.speed.samples_per_s
        points = self.speed.curve if self.speed is not None else ()
        return next((point.value for point in points if point.batch_size == self.batch_size), None)


def _plan(
    view: CardView,
    goal: Objective,
    asked: int | None,
    choice: _Choice,
    peak: PeakEstimate | None,
    **more: Any,
) -> Plan:
    """The plan for a batch size; `peak`: of a trace at it that fits, None where there is none."""
    trials = view.trials
    requested = {BATCH_SIZE: asked} if asked else {}
    why = {BATCH_SIZE: choice.why, **_FOLLOWS}
    return make_plan(
        goal,
        trials.command,
        trials.session.results,
        trials.settings_at(choice.batch_size),
        why,
        requested,
        verified=peak is not None,
        measured=False,
        peak_bytes=estimate_of(peak),
        samples_per_s=choice.samples_per_s,
        baseline_samples_per_s=choice.samples_per_s if choice.batch_size == asked else None,
        **more,
    )


def _largest_so_far(
    view: CardView, goal: Objective, asked: int | None, stop: BaseException
) -> Plan:
    """A partial plan: the requested size, or the largest, of those that were traced and fit. Raises
    `stop` where none does.
    """
    peaks = {
        size: view.card.peak(replayer)
        for size in view.trials.completed()
        if size is not None
        and (replayer := view.replayer(size)) is not None
        and view.card.fits(replayer)
    }
    if not peaks:
        raise stop
    if asked in peaks:
        choice = _Choice(asked, "the requested size fits")
    else:
        choice = _Choice(max(peaks), "the largest traced so far that fits")
    size = choice.batch_size
    ended = view.trials.session.ended_early(stop)
    warnings = tune_plan.partial_advice(ended, f"batch size {size:,}, which was traced and fits")
    if view.is_least(size):
        left_out = "no epoch of uneven batches was looked at"
        warnings.append(Diagnostic("no-epoch", left_out, "it may take more than is said", ""))
    return _plan(view, goal, asked, choice, peaks[size], partial=ended, warnings=tuple(warnings))


def _confirm(view: CardView, size: int) -> PeakEstimate | None:
    """The peak of a trace at the size itself, if it fits."""
    if view.trials.result(size).outcome is not Outcome.COMPLETED:
        return None
    view.learn_epochs(size)
    card, replayer = view.card, view.replayer(size)
    return card.peak(replayer) if replayer is not None and card.fits(replayer) else None


def _choose(
    view: CardView,
    goal: Objective,
    asked: int | None,
    largest: int,
    limited_by: str | None,
) -> _Choice:
    """THROUGHPUT takes the predicted knee, or the requested size where no other is predicted to be
    clearly faster, LARGEST the largest. An epoch has the batches of a step there.
    """
    most = largest_with_a_step(view.trials, largest) or largest
    largest, limited_by = most, limited_by if most == largest else _BY_STEPS
    if goal is Objective.LARGEST:
        return _the_largest(view.trials, largest, limited_by)
    speed = speed_of(view, largest, largest)
    if isinstance(speed, Diagnostic):
        return _the_largest(view.trials, largest, limited_by, speed)
    knee, best = speed.knee_batch_size, speed.best_batch_size
    if knee is None or best is None:
        why = FIXED_TOTAL if FIXED_TOTAL in speed.notes else "too few sizes were traced for a curve"
        no_clock = Diagnostic(
            "no-clock", why, "so no speed is predicted at sizes that were not traced", ""
        )
        return _the_largest(view.trials, largest, limited_by, no_clock)
    at_asked = speed_of(view, asked, largest) if asked is not None and asked <= largest else None
    rate = at_asked.samples_per_s if isinstance(at_asked, PredictedSpeed) else None
    if asked is not None and isinstance(at_asked, PredictedSpeed) and rate is not None:
        fastest = max(point.value.value for point in speed.curve)
        clearly_slower = rate.value < (1 - speed.tolerance) * fastest
        if not clearly_slower and _confirm(view, asked) is not None:
            within = format_share(speed.tolerance)
            why = f"your own: none that fits is predicted to be more than {within} faster"
            return _Choice(asked, why, at_asked, (_predicted(speed, knee),))
    why = "predicted to be the fastest that fits"
    if knee != best:
        why = (
            f"predicted: the smallest size within {format_share(speed.tolerance)} of the fastest "
            f"that fits, {best:,}"
        )
    return _Choice(knee, why, speed, (_predicted(speed, knee),))


def _the_largest(
    trials: Trials, largest: int, limited_by: str | None, *warnings: Diagnostic
) -> _Choice:
    """The largest that fits, with a warning of what brimful did not judge."""
    limits = {
        "dataset": "the whole data set",
        "max_batch_size": "the maximum you gave",
        "budget": "the largest whose upper bound is within the budget",
        _BY_STEPS: "the largest at which an epoch has the batches of a step",
    }
    length = trials.dataset_length()
    epoch = "; an epoch would be a single step" if length and largest >= length else ""
    if limited_by == _BY_STEPS:
        epoch = " and leaves an epoch the batches of a step"
    advice = Diagnostic(
        "speed-not-judged",
        f"{largest:,} is the largest batch size that fits{epoch}",
        "brimful did not judge which size has the highest throughput, or learns best",
        "tune on the card itself when you have it, or keep to --max-batch-size",
    )
    why = limits.get(limited_by or "budget", f"the largest that ran; {limited_text(limited_by)}")
    return _Choice(largest, why, None, (*warnings, advice))


def _predicted(speed: PredictedSpeed, knee: int) -> Diagnostic:
    """What a predicted knee is worth, and where else it may lie."""
    low, high = speed.knee_interval or (knee, knee)
    between = ""
    if low < high:
        between = (
            f" On a host twice as fast or half as fast the knee lies between {low:,} and {high:,}."
        )
    left_out = "".join(f"; {note}" for note in speed.notes)
    what = f"the knee at {knee:,} is predicted"
    if speed.still_rises:
        what = f"that {knee:,} is the fastest size is predicted"
    return Diagnostic(
        "predicted-speed",
        f"{what}, not measured: the time of each kernel comes from its arithmetic and bytes",
        "Which size is fastest is better known than its speed."
        f"{between} Loading is not in it{left_out}.",
        "tune on the card itself when you have it",
    )
