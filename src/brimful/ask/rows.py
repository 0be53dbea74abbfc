"""The rows beside an answer: what holds at other sizes, on other cards, at other settings."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from brimful.ask.answer import answer_at
from brimful.ask.reading import CardView
from brimful.ask.speed import FIXED_TOTAL, speed_of
from brimful.decide.memory.search_traced import MemoryConclusion
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.speed.epoch import epoch_of
from brimful.decide.tune.sizes import between_traces, tried_sizes
from brimful.values import (
    Answer,
    Diagnostic,
    Estimate,
    Loading,
    PeakEstimate,
    PredictedSpeed,
    Source,
    Verdict,
)


def with_peak(row: Answer, peak: PeakEstimate | None) -> Answer:
    """With the device peak."""
    if peak is None:
        return row
    device = Estimate(peak.device_bytes, peak.source, *peak.device_interval_bytes)
    return replace(row, peak_bytes=device, allocated_bytes=peak.allocated_bytes)


def with_speed(
    row: Answer,
    view: CardView,
    speed: PredictedSpeed | Diagnostic,
    loading: Loading | None = None,
    samples: int | None = None,
) -> Answer:
    """With its speed, its updates and an epoch. `loading`, `samples`: as `epoch_of` takes them."""
    if isinstance(speed, Diagnostic):
        return row
    row = replace(row, samples_per_s=speed.samples_per_s, step_s=speed.step_s)
    epoch = epoch_of(view.trials.representative(), speed, loading, samples)
    if epoch is None or speed.samples_per_s is None:
        return row
    least = None if epoch.most_steps is None else epoch.steps
    part = min(1.0, epoch.samples / (speed.samples_per_s.value * speed.step_s.value))
    return replace(
        row,
        effective_batch=Estimate(epoch.samples_per_step, Source.PREDICTED),
        updates_per_epoch=Estimate(epoch.steps, Source.PREDICTED, least, epoch.most_steps),
        step_s=speed.step_s.with_all(lambda seconds: part * seconds),
        epoch_s=epoch.train_s,
    )


def until_confirmed(first: Callable[[], int], confirm: Callable[[int], None]) -> int:
    """The place of the row that is the first and stays so once a trial of its own confirmed it."""
    confirmed: set[int] = set()
    while (place := first()) not in confirmed:
        confirmed.add(place)
        confirm(place)
    return place


def sizes_of(
    view: CardView,
    conclusion: MemoryConclusion,
    sizes: Sequence[int],
    loading: Loading | None = None,
    samples: int | None = None,
    are_named: bool = False,
) -> tuple[Answer, ...]:
    """What each batch size means by the traces that a search left, and by the models of them: no
    trial is run. `are_named`: by the user; of others those whose memory is not known are left out.
    """
    trials, rows = view.trials, []
    completed = trials.completed()
    for size in sizes:
        at = trials.in_force(conclusion, size) or size
        traced = at in completed or bool(view.uneven.programs.get(at))
        row = _with_memory(Answer({BATCH_SIZE: size}, traced=traced), view, conclusion, at)
        if at in trials.results and at not in completed:
            row = replace(row, verdict=Verdict.DOES_NOT_FIT)
        speed = speed_of(view, at, None)
        # kernels at a size that was not traced are known by those of two others
        is_known = at in completed or (
            len(completed) > 1
            and isinstance(speed, PredictedSpeed)
            and FIXED_TOTAL not in speed.notes
        )
        rows.append(with_speed(row, view, speed, loading, samples) if is_known else row)
    rows = [row for row in rows if are_named or row.fits is not None]
    return tried_sizes(list(trials.results.values()), rows)


def _with_memory(row: Answer, view: CardView, conclusion: MemoryConclusion, size: int) -> Answer:
    """By a trace at the size, by a model that a trace confirmed, by an epoch that was put together
    there, or by the curve where the nearest traces allow what it says."""
    trials, is_near = view.trials, view.uneven.are_known_near(size)
    replayers = view.known_replayers(size, conclusion.size_model)
    if replayers is None and view.uneven.programs.get(size):
        replayers = view.replayers(size, view.epochs(size, 1))
    if replayers is not None:
        answer = answer_at(view, size, replayers)
        row = replace(row, verdict=answer.verdict, is_least=not is_near)
        return with_peak(row, answer.peak if is_near else answer.alone)
    if size in trials.completed():
        return row
    estimate = conclusion.estimate
    peak = between_traces(estimate.probes, estimate.curve, size)
    if peak is None:
        return row
    fits = (peak.high or peak.value) <= view.budget.bytes
    is_least = view.uneven.are_known
    verdict = Verdict.FITS if fits else Verdict.DOES_NOT_FIT
    return replace(row, verdict=verdict, peak_bytes=peak, is_least=is_least)
