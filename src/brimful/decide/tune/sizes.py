"""The table that people draw by hand as they climb: for each batch size its memory, its update, and
what an epoch takes.

Figures of a trial at that very size are measured; all others follow from the trials at other sizes,
and are called predicted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from brimful.decide.loaders_seen import (
    batches_per_step,
    main_loader,
    share_of_main,
    steps_at_the_end,
)
from brimful.decide.speed.epoch import steps_of_epoch
from brimful.decide.speed.predicted import is_of_a_fixed_total, samples_by_size
from brimful.values import Answer, Estimate, Outcome, Point, Source, TrialResult
from brimful_inside.wire import LoaderSeen

_ROWS = 6  # of sizes to show, where nobody named them


@dataclass
class _TrialFacts:
    """What the trials show of updates and of an epoch."""

    in_update: dict[int, Estimate] = field(default_factory=dict)  # samples by batch size, all ranks
    lengths: dict[int, int] = field(default_factory=dict)  # batches of an epoch by batch size
    batches: dict[int, float] = field(default_factory=dict)  # in an update, by batch size
    in_epoch: float | None = None  # samples, over all ranks
    ranks: int = 1
    drops_last: bool = False
    at_the_end: bool = False  # the script steps there

    def add(self, trial: TrialResult, size: int) -> None:
        is_imaginary = trial.trial.device.kind == "imaginary"
        source = Source.PREDICTED if is_imaginary else Source.MEASURED
        if trial.samples_per_step is not None:
            self.in_update[size] = Estimate(trial.samples_per_step, source)
        if (count := batches_per_step(trial)) is not None:
            self.batches[size] = count
        self.ranks = trial.reports[0].world_size
        self.at_the_end = self.at_the_end or steps_at_the_end(trial)
        loader = main_loader(trial)
        if loader is None:
            return
        self.drops_last = loader.drop_last
        total = _samples_of_an_epoch(loader, self.ranks)
        if total is not None:
            self.in_epoch = max(self.in_epoch or 0.0, total / share_of_main(trial))
        if loader.length:
            self.lengths[size] = loader.length

    def update_at(self, size: int) -> tuple[Estimate | None, float]:
        """(Samples of an update, its batches) where no trial at that size shows the first."""
        in_a_step = self.batches.get(size) or next(iter(sorted(self.batches.items())), (0, 1))[1]
        counted = {at: samples.value for at, samples in self.in_update.items()}
        samples_at = samples_by_size(counted)
        if size in self.in_update or samples_at is None:
            return self.in_update.get(size), in_a_step
        made = min(size, int(self.in_epoch or size))  # no batch is larger than the data set
        value = samples_at(made)
        if is_of_a_fixed_total(counted, self.batches):
            # to a total, or by one batch that is larger than it
            value = max(counted[min(counted)], made * self.ranks)
            in_a_step = math.ceil(value / (made * self.ranks))
        return Estimate(value, Source.PREDICTED), in_a_step


def tried_sizes(trials: Sequence[TrialResult], known: Iterable[Answer]) -> tuple[Answer, ...]:
    """The rows of `known`, ascending, with what follows from the trials where they say nothing of
    updates and of an epoch.

    What does not fit has no speed and no epoch.
    """
    facts = _TrialFacts()
    for trial in trials:
        size = trial.trial.settings.get("batch_size")
        if trial.outcome is Outcome.COMPLETED and trial.reports and isinstance(size, int):
            facts.add(trial, size)
    return tuple(_with_epoch(facts, row) for row in sorted(known, key=attrgetter("batch_size")))


def _with_epoch(facts: _TrialFacts, row: Answer) -> Answer:
    size, rate, updates = row.batch_size or 0, row.samples_per_s, row.updates_per_epoch
    effective, in_a_step = facts.update_at(size)
    effective, trained = row.effective_batch or effective, facts.in_epoch
    if updates is None and effective is not None and (trained or size in facts.lengths):
        steps = steps_of_epoch(
            trained or math.inf,
            effective.value,
            in_a_step,
            facts.drops_last,
            facts.at_the_end,
            facts.lengths.get(size),
        )
        updates = steps.updates(effective.source if size in facts.lengths else Source.PREDICTED)
        effective = replace(effective, value=steps.samples_per_step)
        trained = steps.samples if trained else None
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
    return replace(
        row,
        effective_batch=effective,
        updates_per_epoch=updates,
        samples_per_s=rate,
        step_s=step_s,
        epoch_s=epoch_s,
    )


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
