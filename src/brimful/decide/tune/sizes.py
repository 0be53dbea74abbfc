"""The table that people draw by hand as they climb: for each batch size its memory, its update, and
what an epoch takes.

Figures of a trial at that very size are measured; all others follow from the trials at other sizes,
and are called predicted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from brimful.decide.loaders_seen import batches_per_step, main_loader
from brimful.decide.speed.predicted import is_of_a_fixed_total, samples_by_size
from brimful.values import Estimate, Outcome, Point, Source, TrialResult, TriedSize

_ROWS = 6  # of sizes to show, where nobody named them


def tried_sizes(trials: Sequence[TrialResult], known: Iterable[TriedSize]) -> tuple[TriedSize, ...]:
    """The rows of `known`, ascending, with what follows from the trials where they say nothing of
    updates and of an epoch.

    What does not fit has no speed and no epoch.
    """
    in_update: dict[int, Estimate] = {}  # samples by batch size, over all ranks
    of_epoch: dict[int, Estimate] = {}  # updates by batch size
    totals: list[float] = []  # samples of an epoch, over all ranks
    batches: dict[int, float] = {}  # in an update, by batch size
    ranks = 1
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
        count, total = _of_an_epoch(trial)
        if count is not None:
            of_epoch[size] = Estimate(count, source)
        totals += [total] if total is not None else []
    in_epoch = max(totals, default=None)
    counted = {size: samples.value for size, samples in in_update.items()}
    samples_at, accumulates = samples_by_size(counted), is_of_a_fixed_total(counted, batches)
    rows = []
    for row in sorted(known, key=lambda row: row.batch_size):
        size, rate = row.batch_size, row.samples_per_s
        effective = row.effective_batch or in_update.get(size)
        if effective is None and samples_at is not None:
            made = min(size, int(in_epoch or size))  # no batch is larger than the data set
            value = samples_at(made)
            if accumulates:  # to a total, or by one batch that is larger than it
                value = max(counted[min(counted)], made * ranks)
            effective = Estimate(value, Source.PREDICTED)
        updates = row.updates_per_epoch or of_epoch.get(size)
        if updates is None and effective is not None and in_epoch:
            updates = Estimate(math.ceil(in_epoch / effective.value), Source.PREDICTED)
        step_s, epoch_s = row.step_s, row.epoch_s
        if row.fits is False:
            rate = step_s = epoch_s = None
        elif rate is not None and rate.value:
            if step_s is None and effective is not None:
                step_s = replace(rate, value=effective.value / rate.value, low=None, high=None)
            if epoch_s is None and in_epoch:
                # nobody waited for an epoch
                note = "by its measured steps" if rate.source is Source.MEASURED else None
                epoch_s = Estimate(in_epoch / rate.value, Source.PREDICTED, note=note)
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


def on_the_curve(curve: Sequence[Point], size: int) -> Estimate | None:
    """Between two points, on the line through them; None outside of them."""
    by_size = attrgetter("batch_size")
    below = max((point for point in curve if point.batch_size <= size), key=by_size, default=None)
    above = min((point for point in curve if point.batch_size >= size), key=by_size, default=None)
    if below is None or above is None:
        return None
    part = (size - below.batch_size) / max(1, above.batch_size - below.batch_size)

    def between(name: str) -> float | None:
        ends = getattr(below.value, name), getattr(above.value, name)
        return None if None in ends else ends[0] + part * (ends[1] - ends[0])

    value = below.value.value + part * (above.value.value - below.value.value)
    return replace(below.value, value=value, low=between("low"), high=between("high"))


def _of_an_epoch(trial: TrialResult) -> tuple[int | None, float | None]:
    """(updates, samples over all ranks) of an epoch, as the loader of the first rank shows them."""
    report = trial.reports[0]
    loader = main_loader(trial)
    if loader is None:
        return None, None
    total = (
        loader.sampler_samples * report.world_size
        if loader.sampler_samples is not None
        else loader.dataset_length
    )
    batches = batches_per_step(trial)
    return (math.ceil(loader.length / batches) if loader.length and batches else None), total
