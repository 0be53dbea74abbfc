"""The table that people draw by hand as they climb: for each batch size its memory, its update, and
what an epoch takes.

Figures of a trial at that very size are measured; all others follow from the trials at other sizes,
and are called predicted.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from brimful.decide.loaders_seen import batches_per_step, main_loader
from brimful.decide.speed.predicted import samples_by_size
from brimful.values import Estimate, Outcome, Source, TrialResult, TriedSize

_ROWS = 12  # of predicted sizes; the trials' own are always there


@dataclass(frozen=True)
class _Epoch:
    """What trials showed of updates, by batch size."""

    effective: dict[int, float]  # samples in an update, over all ranks
    updates: dict[int, int]  # in an epoch
    samples: float | None  # in an epoch, over all ranks


def tried_sizes(
    trials: Sequence[TrialResult],
    peaks: Mapping[int, Estimate],
    rates: Mapping[int, Estimate],
    fitting: Mapping[int, bool],
    sizes: Iterable[int] = (),
) -> tuple[TriedSize, ...]:
    """A row for each batch size of `trials` and of `sizes`, ascending.

    `peaks` and `rates` (samples per second) by batch size, each with its source; `fitting`: whether
    it is within the budget.
    """
    epoch = _epoch(trials)
    samples_at = samples_by_size(dict(epoch.effective))
    rows = []
    for size in sorted({*_by_size(trials), *sizes}):
        effective = _number(
            epoch.effective.get(size), samples_at(size) if samples_at is not None else None
        )
        updates = None
        if effective is not None:
            expected = math.ceil(epoch.samples / effective.value) if epoch.samples else None
            updates = _number(epoch.updates.get(size), expected)
        fits = fitting.get(size)
        epoch_s = (
            _epoch_s(rates.get(size) or _between(rates, size), epoch.samples)
            if fits is not False
            else None
        )
        rows.append(TriedSize(size, fits, peaks.get(size), effective, updates, epoch_s))
    return tuple(rows)


def sizes_to_show(largest: int, also: Iterable[int | None], spills: bool) -> list[int]:
    """Powers of two up to the largest that fits, the highest of them where there are many, and
    `also`; the next one too where the largest is so because more `spills`."""
    powers = [1 << power for power in range(largest.bit_length() + spills)]
    return sorted({*powers[-_ROWS:], largest, *(size for size in also if size is not None)})


def _number(measured: float | None, predicted: float | None) -> Estimate | None:
    if measured is not None:
        return Estimate(measured, Source.MEASURED)
    return Estimate(predicted, Source.PREDICTED) if predicted is not None else None


def _between(rates: Mapping[int, Estimate], size: int) -> Estimate | None:
    """Where rates are predicted, those of a curve: on the line between its neighbours. None outside
    of it.
    """
    below = max((at for at in rates if at < size), default=None)
    above = min((at for at in rates if at > size), default=None)
    if (
        below is None
        or above is None
        or any(rate.source is not Source.PREDICTED for rate in rates.values())
    ):
        return None
    part = (size - below) / (above - below)
    return Estimate(rates[below].value * (1 - part) + rates[above].value * part, Source.PREDICTED)


def _epoch_s(rate: Estimate | None, samples: float | None) -> Estimate | None:
    """Nobody waited for an epoch: its time is predicted, from measured steps or from predicted
    ones.
    """
    if rate is None or not rate.value or not samples:
        return None
    note = "by its measured steps" if rate.source is Source.MEASURED else None
    return Estimate(samples / rate.value, Source.PREDICTED, note=note)


def _by_size(trials: Iterable[TrialResult]) -> dict[int, list[TrialResult]]:
    by_size: dict[int, list[TrialResult]] = {}
    for trial in trials:
        size = trial.trial.settings.get("batch_size")
        if isinstance(size, int):
            by_size.setdefault(size, []).append(trial)
    return by_size


def _epoch(trials: Sequence[TrialResult]) -> _Epoch:
    done = [trial for trial in trials if trial.outcome is Outcome.COMPLETED and trial.reports]
    effective: dict[int, float] = {}
    updates: dict[int, int] = {}
    totals: list[float] = []
    for size, several in _by_size(done).items():
        for trial in several:
            if trial.samples_per_step is not None:
                effective[size] = trial.samples_per_step
            count, total = _of_an_epoch(trial)
            if count is not None:
                updates[size] = count
            totals += [total] if total is not None else []
    return _Epoch(effective, updates, max(totals, default=None))


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
