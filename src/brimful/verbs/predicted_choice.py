"""Which batch size a plan names on an imaginary card: the predicted knee where the card has a clock, else the largest."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.units import format_share
from brimful.values import Diagnostic, Estimate, Objective, PredictedSpeed, Source, SpeedEstimate
from brimful.verbs.imaginary import Tracer
from brimful.verbs.predicted_speed import FIXED_TOTAL, speed_of

__all__ = ["Choice", "belief_of", "choose", "the_largest"]


@dataclass(frozen=True)
class Choice:
    """A batch size with the reason it was taken, and what is predicted of its speed."""

    batch_size: int
    why: str
    speed: PredictedSpeed | None = None
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def samples_per_s(self) -> Estimate | None:
        points = self.speed.curve if self.speed is not None else ()
        return next((point.value for point in points if point.batch_size == self.batch_size), None)


def choose(tracer: Tracer, goal: Objective, asked: int | None, largest: int, limited_by: str | None) -> Choice:
    """FASTEST takes the predicted knee, FIT what was asked for if it fits; LARGEST, and any other, the largest."""
    if goal is Objective.FIT and asked is not None and asked <= largest:
        return Choice(asked, "it fits as asked")
    if goal is not Objective.FASTEST:
        return the_largest(tracer, largest, limited_by)
    speed = speed_of(tracer, largest, largest)
    if isinstance(speed, Diagnostic):
        return the_largest(tracer, largest, limited_by, speed)
    knee, best = speed.knee_batch_size, speed.best_batch_size
    if knee is None or best is None:
        why = FIXED_TOTAL if FIXED_TOTAL in speed.notes else "too few sizes were traced for a curve"
        nothing = Diagnostic("no-clock", why, "so no speed is predicted at sizes that were not traced", "")
        return the_largest(tracer, largest, limited_by, nothing)
    if knee == best:
        return Choice(knee, "predicted to be the fastest that fits", speed, _predicted(speed, knee))
    why = f"predicted: the smallest size within {format_share(speed.tolerance)} of the fastest that fits, {best:,}"
    return Choice(knee, why, speed, _predicted(speed, knee))


def the_largest(tracer: Tracer, largest: int, limited_by: str | None, *found: Diagnostic) -> Choice:
    """The largest that fits, with a word on what was not judged."""
    within = "the largest whose upper bound is within the budget"
    limits = {"dataset": "the whole data set", "max_batch_size": "the maximum you gave", "budget": within}
    why = limits.get(limited_by or "budget", f"the largest that ran; limited by {limited_by}")
    length = tracer.dataset_length()
    epoch = "; an epoch would be a single step" if length and largest >= length else ""
    advice = Diagnostic(
        "speed-not-judged",
        f"{largest:,} is the largest batch size that fits{epoch}",
        "which size trains fastest, or learns best, was not judged",
        "tune on the card itself when you have it, or keep to --max-batch-size",
    )
    return Choice(largest, why, None, (*found, advice))


def _predicted(speed: PredictedSpeed, knee: int) -> tuple[Diagnostic, ...]:
    """What a predicted knee is worth, and where else it may lie."""
    low, high = speed.knee_interval or (knee, knee)
    between = (
        f" It lies between {low:,} and {high:,}, as the host there is twice as fast or half as fast." if low < high else ""
    )
    left_out = "".join(f"; {note}" for note in speed.notes)
    return (
        Diagnostic(
            "predicted-speed",
            f"the knee at {knee:,} is predicted, not measured: the time of each kernel comes from its arithmetic and bytes",
            f"Where it lies is known better than how fast it is.{between} Loading is not in it{left_out}.",
            "tune on the card itself when you have it",
        ),
    )


def belief_of(speed: PredictedSpeed) -> SpeedEstimate:
    """The predicted curve as the record keeps curves; each point says that it is predicted."""
    assert all(point.value.source is Source.PREDICTED for point in speed.curve)
    return SpeedEstimate(speed.curve, speed.best_batch_size, speed.knee_batch_size, None, speed.tolerance)
