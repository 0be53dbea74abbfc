"""Loading beside the card: what workers make here, measured, and what a card takes, predicted."""

from __future__ import annotations

import math
from collections.abc import Iterable

from brimful.values import Estimate, Loading, PredictedSpeed, Source, TrialResult


def loading_of(results: Iterable[TrialResult], speed: PredictedSpeed | None) -> Loading | None:
    """By the trial that timed its training loader (`TrialConfig.time_loader`); None where none did."""
    reports = (report for result in results for report in result.reports)
    loader = next((one for report in reports for one in report.loaders if one.rates), None)
    if loader is None or "1" not in loader.rates:
        return None
    one_worker = _measured(loader.rates["1"])
    all_workers = _measured(loader.rates.get(str(loader.workers), one_worker.value))
    card = None if speed is None or speed.samples_per_s is None else _of_a_rank(speed.samples_per_s, speed.ranks)
    needed = None if card is None else max(1, math.ceil(card.value / one_worker.value))
    binds = card is not None and all_workers.value < card.value
    return Loading(loader.workers, one_worker, all_workers, card, needed, binds)


def _of_a_rank(speed: Estimate, ranks: int) -> Estimate:
    low, high = (None if end is None else end / ranks for end in (speed.low, speed.high))
    return Estimate(speed.value / ranks, Source.PREDICTED, low, high)


def _measured(samples_per_s: float) -> Estimate:
    return Estimate(samples_per_s, Source.MEASURED, note="on this machine, by processes of the script's own loader")
