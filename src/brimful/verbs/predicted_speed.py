"""What the traces taken for memory show about speed on an imaginary card, and which batch size a plan names for it."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.decide.speed.kernels import fit_kernels
from brimful.decide.speed.predicted import is_of_a_fixed_total, predict_speed, rates_of, samples_by_size
from brimful.units import format_share
from brimful.values import Diagnostic, Estimate, Objective, Outcome, PredictedSpeed, Source, SpeedEstimate, TrialResult
from brimful.verbs.imaginary import Tracer
from brimful.verbs.samples import batches_per_step

FIXED_TOTAL = "steps at other batch sizes, and so the knee: as many batches make a step as come to a fixed total"


def speed_of(tracer: Tracer, batch_size: int | None, largest: int | None) -> PredictedSpeed | Diagnostic:
    """The speed at `batch_size` (None: of the command as it stands), and up to `largest`, from the traces taken so far.

    Or what stands in the way of one.
    """
    gpu = tracer.gpu
    if rates_of(gpu) is None:
        return Diagnostic(
            "no-clock",
            "only the memory of this card is known",
            "so no speed is predicted",
            "name a card of the catalogue where there is one: --gpu (see `brimful gpus`)",
        )
    done = {
        size: sample
        for size, sample in tracer.samples.items()
        if sample.outcome is Outcome.COMPLETED and (size is None) == (batch_size is None)
    }
    counted = {size or 0: sample.samples_per_step for size, sample in done.items()}
    batches = {size or 0: count for size, sample in done.items() if (count := batches_per_step(sample))}
    accumulates = is_of_a_fixed_total(counted, batches)
    kernels = fit_kernels({size or 0: tracer.kernels(size) for size in done}, alike=not accumulates)
    if kernels is None:
        return Diagnostic("no-clock", "no trial saw a step from its beginning to its end", "so no speed is predicted", "")
    samples, notes = samples_by_size(counted), _left_out(tracer.representative())
    if accumulates:
        notes.append(FIXED_TOTAL)
    elif samples is not None and batch_size is not None:
        first, last = kernels.fitted_at[0], kernels.fitted_at[-1]
        if samples(first) == samples(last) and kernels.at(first) != kernels.at(last):
            samples = float  # the work of a step grows with the batch size
            notes.append("samples are counted as the batch size, for the steps' own count does not change with it")
    ranks = tracer.representative().reports[0].world_size
    speed = predict_speed(kernels, gpu, batch_size, largest, samples, notes=tuple(notes), ranks=ranks, draws=not accumulates)
    assert speed is not None
    return speed


def _left_out(sample: TrialResult) -> list[str]:
    """What happens in a step and is not in its predicted time."""
    report = sample.reports[0]
    notes = []
    if report.world_size > 1:
        notes.append(f"communication between {report.world_size} ranks takes time that is not counted")
    if report.worst_batch is not None and report.worst_batch.varies:
        notes.append("this is for the largest batch there can be; ordinary ones are faster")
    if any("compile" in name for name in report.approximations):
        notes.append("the trial ran the model as it is; compiled, it is faster as a rule")
    return notes


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
    why = "predicted to be the fastest that fits"
    if knee != best:
        why = f"predicted: the smallest size within {format_share(speed.tolerance)} of the fastest that fits, {best:,}"
    return Choice(knee, why, speed, (_predicted(speed, knee),))


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
        "brimful did not judge which size trains fastest, or learns best",
        "tune on the card itself when you have it, or keep to --max-batch-size",
    )
    return Choice(largest, why, None, (*found, advice))


def _predicted(speed: PredictedSpeed, knee: int) -> Diagnostic:
    """What a predicted knee is worth, and where else it may lie."""
    low, high = speed.knee_interval or (knee, knee)
    between = (
        f" It lies between {low:,} and {high:,}, as the host there is twice as fast or half as fast." if low < high else ""
    )
    left_out = "".join(f"; {note}" for note in speed.notes)
    return Diagnostic(
        "predicted-speed",
        f"the knee at {knee:,} is predicted, not measured: the time of each kernel comes from its arithmetic and bytes",
        f"Where it lies is known better than how fast it is.{between} Loading is not in it{left_out}.",
        "tune on the card itself when you have it",
    )


def speed_estimate(speed: PredictedSpeed) -> SpeedEstimate:
    """The predicted curve as the record keeps curves; each point says that it is predicted."""
    assert all(point.value.source is Source.PREDICTED for point in speed.curve)
    return SpeedEstimate(speed.curve, speed.best_batch_size, speed.knee_batch_size, None, speed.tolerance)
