"""The clock's part of a prediction: the kernels of the traces that were taken for memory, and what they say about speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from brimful.decide.speed.kernels import KernelLaws, ScaledKernels, fit_kernels
from brimful.decide.speed.predicted import (
    is_of_a_fixed_total,
    predict_speed,
    rates_of,
    samples_law,
)
from brimful.values import Diagnostic, Outcome, PredictedSpeed, Prediction, TrialResult
from brimful.verbs.imaginary import Tracer
from brimful.verbs.seen import batches_per_step

__all__ = ["FIXED_TOTAL", "speed_of", "with_speed"]

FIXED_TOTAL = "steps at other batch sizes, and so the knee: as many batches make a step as come to a fixed total"


def with_speed(tracer: Tracer, prediction: Prediction) -> Prediction:
    """The prediction with its speed, or with what stands in the way of one."""
    size, length = prediction.batch_size, tracer.dataset_length()
    speed = speed_of(tracer, size if size is None or length is None else min(size, length), prediction.largest_batch_size)
    if isinstance(speed, Diagnostic):
        return replace(prediction, warnings=(*prediction.warnings, speed))
    return replace(prediction, speed=speed)


def speed_of(tracer: Tracer, batch_size: int | None, largest: int | None) -> PredictedSpeed | Diagnostic:
    """The speed at `batch_size` (None: of the command as it stands), and up to `largest`, from the traces taken so far."""
    gpu = tracer.gpu
    assert gpu is not None
    if rates_of(gpu) is None:
        return Diagnostic(
            "no-clock",
            "nothing is known of this card but its memory",
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
    fitted = fit_kernels({size or 0: tracer.runs(size) for size in done}, alike=not accumulates)
    if fitted is None:
        return Diagnostic("no-clock", "no step was seen from its beginning to its end", "so no speed is predicted", "")
    samples, notes = samples_law(counted), _left_out(tracer.worst())
    if accumulates:
        notes.append(FIXED_TOTAL)
    elif samples is not None and batch_size is not None and _miscounted(fitted, samples):
        samples = float
        notes.append("samples are counted as the batch size, for the steps' own count does not change with it")
    ranks = tracer.worst().reports[0].world_size
    speed = predict_speed(fitted, gpu, batch_size, largest, samples, notes=tuple(notes), ranks=ranks, draws=not accumulates)
    assert speed is not None
    return speed


def _miscounted(fitted: KernelLaws | ScaledKernels, samples: Callable[[int], float]) -> bool:
    """Whether the work of a step grows with the batch size and the samples in it are said not to."""
    sizes = fitted.fitted_at
    return samples(sizes[0]) == samples(sizes[-1]) and fitted.at(sizes[0]) != fitted.at(sizes[-1])


def _left_out(sample: TrialResult) -> list[str]:
    """What happens in a step and is not in its predicted time."""
    report = sample.reports[0]
    notes = []
    if report.world_size > 1:
        notes.append(f"what {report.world_size} ranks say to each other takes time that is not counted")
    if report.worst_batch is not None and report.worst_batch.varies:
        notes.append("this is for the largest batch there can be; ordinary ones are faster")
    if any("compile" in name for name in report.approximations):
        notes.append("the model was run as it is; compiled, it is faster as a rule")
    return notes
