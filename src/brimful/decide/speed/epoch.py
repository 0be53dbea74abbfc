"""An epoch at a predicted speed: its steps, its samples, its time with the evaluation."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from brimful.decide.loaders_seen import (
    dataset_length,
    loaders,
    samples_of,
    share_of_main,
    steps_at_the_end,
)
from brimful.values import Epoch, Estimate, Loading, PredictedSpeed, Source, TrialResult
from brimful_inside.wire import LoadingSpeed

# Samplers that draw every sample once at most. What others draw (with weights, with replacement)
# nobody knows beforehand.
_ONCE = ("SequentialSampler", "RandomSampler", "SubsetRandomSampler", "DistributedSampler")
# Of a training step's time for as many samples, where no trial showed what runs: a forward pass,
# which a backward pass takes twice the time of.
EVALUATION = 1 / 3
# Of a worker's time: one that waits for a core longer than this says nothing of how fast it loads
# (assumed: up to there what it would do alone is within a factor of two of what was seen).
BUSY = 0.5
_EVALUATION_BASIS = "assumed: a third of the training's time for each sample"


class StepsCounted(NamedTuple):
    """The steps of an epoch, over all ranks."""

    steps: int  # with all their batches
    most_steps: int | None  # with one of what is left at the end; None: as many, or never
    samples_per_step: float  # no more than an epoch has
    samples: float  # that are trained on

    def updates(self, source: Source) -> Estimate:
        most = self.most_steps
        return Estimate(self.steps, source, None if most is None else self.steps, most)


def steps_of_epoch(
    samples: float,
    per_step: float,
    batches_per_step: float = 1,
    drops_last: bool = False,
    at_the_end: bool = False,
    batches: int | None = None,
) -> StepsCounted:
    """`samples`: that an epoch has; `per_step`: those of a step with all its batches, of which the
    last of an epoch is short, or dropped. `batches`: of an epoch, where its loader knows them.
    `at_the_end`: the script steps with what is left there."""
    share = samples * batches_per_step / per_step + 1e-9
    if batches is None:
        batches = max(1, math.floor(share) if drops_last else math.ceil(share - 2e-9))
    if drops_last:
        samples = min(samples, batches * per_step / batches_per_step)
    steps, most = (round_(batches / batches_per_step) for round_ in (math.floor, math.ceil))
    if at_the_end:
        steps = most
    return StepsCounted(steps, most if most > steps else None, min(per_step, samples), samples)


def epoch_of(
    result: TrialResult,
    speed: PredictedSpeed | None,
    loading: Loading | None,
    samples: int | None = None,
    outside: Mapping[int | None, Estimate] | None = None,
) -> Epoch | None:
    """None where nobody knows how many samples an epoch or a step has. `samples`: of an epoch, as
    the user gives them. `outside`: the card's seconds for a sample of an evaluation, by the place
    of its loader in a report, and (None) from one pass over the training's data to the next, as far
    as trials showed them."""
    loading = None if loading is None or loading.busy is not None else loading
    loader, here = next(loaders(result, "train"), None), dataset_length(result)
    length = None if here is None else here * result.reports[0].world_size
    total = samples or length
    if (
        total is None
        or loader is None
        or speed is None
        or speed.samples_per_s is None
        or not speed.step_s.value
    ):
        return None
    per_step = speed.samples_per_s.value * speed.step_s.value
    main = share_of_main(result)
    counted = steps_of_epoch(
        total / main,
        per_step,
        speed.batches_per_step,
        loader.drop_last,
        steps_at_the_end(result),
    )
    rate = replace(speed.samples_per_s, note=None)
    outside = outside or {}
    evaluated, evaluation_s = _evaluation(result, rate, speed.ranks, outside)
    return Epoch(
        steps=counted.steps,
        most_steps=counted.most_steps,
        samples_per_step=round(counted.samples_per_step),
        samples=round(counted.samples),
        samples_given=samples is not None,
        distinct=round(counted.samples)
        if samples is None
        and loader.sampler in _ONCE
        and length == loader.dataset_length
        and main == 1
        else None,
        train_s=_with_loading(
            _seconds_on_card(rate, counted.samples), counted.samples / speed.ranks, loading
        ),
        waits_for_data=loading is not None and (loading.binds or not loading.workers),
        evaluated=evaluated or None,
        evaluation_s=_with_loading(evaluation_s, evaluated, loading) if evaluated else None,
        between_s=outside.get(None),
    )


def _evaluation(
    result: TrialResult, rate: Estimate, ranks: int, outside: Mapping[int | None, Estimate]
) -> tuple[int, Estimate]:
    """(Samples of an evaluation, the card's seconds for them.) `rate`: of the training."""
    seen = result.reports[0].loaders
    timed = [(samples_of(seen[n]) or 0, outside[n]) for n in range(len(seen)) if n in outside]
    if not timed:
        evaluated = sum(samples_of(loader) or 0 for loader in loaders(result, "eval"))
        assumed = replace(rate, source=Source.ASSUMED, note=_EVALUATION_BASIS)
        return evaluated, _seconds_on_card(assumed, evaluated * ranks * EVALUATION)
    value, low, high = (
        sum(count * (getattr(each, end) or 0.0) for count, each in timed)
        for end in ("value", "low", "high")
    )
    evaluated = sum(count for count, _ in timed)
    return evaluated, Estimate(value, Source.PREDICTED, low, high)


def _seconds_on_card(samples_per_s: Estimate, samples: float) -> Estimate:
    seconds = samples_per_s.with_all(lambda rate: samples / rate)
    return replace(seconds, low=seconds.high, high=seconds.low)


def _with_loading(card_s: Estimate, samples: float, loading: Loading | None) -> Estimate:
    """What the card takes or what loading so many samples does where that is longer, or both, one
    after the other, where no worker loads."""
    if loading is None:
        return card_s
    loaded_s = samples / loading.all_workers.value
    return card_s.with_all(
        lambda seconds: max(seconds, loaded_s) if loading.workers else seconds + loaded_s
    )


def loading_of(results: Iterable[TrialResult], speed: PredictedSpeed | None) -> Loading | None:
    """By the trial that timed its training loader (`TrialConfig.time_loader`); None where
    none did.
    """
    reports = (report for result in results for report in result.reports)
    timed = (loader for report in reports for loader in report.loaders if "1" in loader.speeds)
    if (loader := next(timed, None)) is None:
        return None
    one = loader.speeds["1"]
    waited = one.waited or 0.0
    one_worker = _alone(one, min(waited, BUSY))
    several = loader.speeds.get(str(loader.workers))
    all_workers = one_worker
    if several is not None and loader.workers > 1:
        # They may wait for each other, too: only the fast end is that of a machine of their own.
        all_workers = replace(_alone(several, 0.0), high=_alone(several, min(waited, BUSY)).high)
    busy = waited if waited > BUSY else None
    rate = None if speed is None else speed.samples_per_s
    card = (
        None
        if speed is None or rate is None
        else replace(rate.with_all(lambda samples: samples / speed.ranks), note=None)
    )
    if card is None:
        return Loading(loader.workers, one_worker, all_workers, None, None, False, busy=busy)
    most, needed, least = (
        max(1, math.ceil(card.value / (end or one_worker.value)))
        for end in (one_worker.low, one_worker.value, one_worker.high)
    )
    binds = busy is None and (all_workers.high or all_workers.value) < card.value
    ends = least, most
    return Loading(loader.workers, one_worker, all_workers, card, needed, binds, ends, busy)


def _alone(speed: LoadingSpeed, waited: float) -> Estimate:
    """What was measured, less the share of the time that was spent waiting for a core; the slow end
    is what was seen."""
    return Estimate(
        speed.median / (1 - waited),
        Source.MEASURED,
        speed.low,
        speed.high / (1 - waited),
        note="on this machine, by processes of the script's own loader",
    )
