"""The table that people draw by hand as they climb: for each batch size its memory, its update, and
what an epoch takes.

Figures of a trial at that very size are measured; all others follow from the trials at other sizes,
and are called predicted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from brimful.decide.loaders_seen import (
    batches_per_step,
    main_loader,
    share_of_main,
    steps_at_the_end,
)
from brimful.decide.speed.epoch import steps_of_epoch
from brimful.decide.speed.predicted import is_of_a_fixed_total, samples_by_size
from brimful.values import Estimate, Outcome, Point, Source, TrialResult, TriedSize
from brimful_inside.wire import LoaderSeen

_ROWS = 6  # of sizes to show, where nobody named them


def tried_sizes(trials: Sequence[TrialResult], known: Iterable[TriedSize]) -> tuple[TriedSize, ...]:
    """The rows of `known`, ascending, with what follows from the trials where they say nothing of
    updates and of an epoch.

    What does not fit has no speed and no epoch.
    """
    in_update: dict[int, Estimate] = {}  # samples by batch size, over all ranks
    lengths: dict[int, int] = {}  # batches of an epoch by batch size
    totals: list[float] = []  # samples of an epoch, over all ranks
    batches: dict[int, float] = {}  # in an update, by batch size
    ranks, drops_last, at_the_end = 1, False, False
    for trial in trials:
        size = trial.trial.settings.get("batch_size")
        if trial.outcome is not Outcome.COMPLETED or not trial.reports or not isinstance(size, int):
            continue
        is_imaginary = trial.trial.device.kind == "imaginary"
        source = Source.PREDICTED if is_imaginary else Source.MEASURED
        if trial.samples_per_step is not None:
            in_update[size] = Estimate(trial.samples_per_step, source)
        if (count := batches_per_step(trial)) is not None:
            batches[size] = count
        ranks = trial.reports[0].world_size
        at_the_end = at_the_end or steps_at_the_end(trial)
        if (loader := main_loader(trial)) is not None:
            drops_last = loader.drop_last
            total = _samples_of_an_epoch(loader, ranks)
            totals += [] if total is None else [total / share_of_main(trial)]
            lengths |= {size: loader.length} if loader.length else {}
    in_epoch = max(totals, default=None)
    counted = {size: samples.value for size, samples in in_update.items()}
    samples_at, accumulates = samples_by_size(counted), is_of_a_fixed_total(counted, batches)
    rows = []
    for row in sorted(known, key=lambda row: row.batch_size):
        size, rate = row.batch_size, row.samples_per_s
        effective, updates = row.effective_batch or in_update.get(size), row.updates_per_epoch
        in_a_step = batches.get(size) or (batches[min(batches)] if batches else 1)
        if effective is None and samples_at is not None:
            made = min(size, int(in_epoch or size))  # no batch is larger than the data set
            value = samples_at(made)
            if accumulates:  # to a total, or by one batch that is larger than it
                value = max(counted[min(counted)], made * ranks)
                in_a_step = math.ceil(value / (made * ranks))
            effective = Estimate(value, Source.PREDICTED)
        trained = in_epoch
        if updates is None and effective is not None and (in_epoch or size in lengths):
            steps = steps_of_epoch(
                in_epoch or math.inf,
                effective.value,
                in_a_step,
                drops_last,
                at_the_end,
                lengths.get(size),
            )
            updates = steps.updates(effective.source if size in lengths else Source.PREDICTED)
            effective = replace(effective, value=steps.samples_per_step)
            trained = steps.samples if in_epoch else None
        step_s, epoch_s = row.step_s, row.epoch_s
        if row.fits is False:
            rate = step_s = epoch_s = None
        elif rate is not None and rate.value:
            if step_s is None and effective is not None:
                step_s = replace(rate, value=effective.value / rate.value, low=None, high=None)
            if epoch_s is None and trained:
                # nobody waited for an epoch
                note = "by its measured steps" if rate.source is Source.MEASURED else None
                epoch_s = Estimate(trained / rate.value, Source.PREDICTED, note=note)
        rows.append(
            replace(
                row,
                effective_batch=effective,
                updates_per_epoch=updates,
                samples_per_s=rate,
                step_s=step_s,
                epoch_s=epoch_s,
            )
        )
    return tuple(rows)


def sizes_to_show(largest: int, also: Iterable[int | None], spills: bool) -> list[int]:
    """The largest that fits, and `also`, with powers of two between them and below, and the next
    one where the largest is so because more `spills`: few rows, evenly spread."""
    wanted = {largest, *(size for size in also if size is not None)}
    end = max(wanted)
    powers = [1 << n for n in range(end.bit_length() + (spills and end == largest))]
    room = max(2, _ROWS - len(wanted.difference(powers)))
    between = [power for power in powers if power >= min(wanted)]
    powers = powers[-max(room, len(between)) :]
    return sorted(wanted.union(powers[:: -math.ceil(len(powers) / room)]))


def between_traces(traced: Sequence[Point], curve: Sequence[Point], size: int) -> Estimate | None:
    """By the curve, of a model that no trace confirmed, where it stays between the peaks of the
    nearest traced sizes, else on the line through them. None beyond all of them."""
    (below, above), peak = _nearest(traced, size), on_the_curve(curve, size)
    straight = on_the_curve(traced, size)
    if below is None or above is None or peak is None:
        return straight
    return peak if below.value.value <= peak.value <= above.value.value else straight


def _nearest(points: Sequence[Point], size: int) -> tuple[Point | None, Point | None]:
    """Those at the size, or on both sides of it."""
    by_size = attrgetter("batch_size")
    below = max((point for point in points if point.batch_size <= size), key=by_size, default=None)
    above = min((point for point in points if point.batch_size >= size), key=by_size, default=None)
    return below, above


def on_the_curve(curve: Sequence[Point], size: int) -> Estimate | None:
    """Between two points, on the line through them; None outside of them."""
    below, above = _nearest(curve, size)
    if below is None or above is None:
        return None
    part = (size - below.batch_size) / max(1, above.batch_size - below.batch_size)

    def between(name: str) -> float | None:
        ends = getattr(below.value, name), getattr(above.value, name)
        return None if None in ends else ends[0] + part * (ends[1] - ends[0])

    value = below.value.value + part * (above.value.value - below.value.value)
    return replace(below.value, value=value, low=between("low"), high=between("high"))


def _samples_of_an_epoch(loader: LoaderSeen, ranks: int) -> float | None:
    """Over all ranks, as the loader of the first one shows them."""
    return (
        loader.dataset_length if loader.sampler_samples is None else loader.sampler_samples * ranks
    )
