"""The predicted speed of a step, from what trials on an imaginary card showed."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import replace

from brimful.ask.reading import CardView
from brimful.ask.traces import Trials
from brimful.decide.loaders_seen import (
    batches_per_step,
    loaders,
    mean_share,
    share_of_main,
    steps_at_the_end,
)
from brimful.decide.speed.epoch import steps_of_epoch
from brimful.decide.speed.kernels import KernelModel, ScaledKernels
from brimful.decide.speed.predicted import (
    is_of_a_fixed_total,
    predict_speed,
    rates_of,
    samples_by_size,
    seconds_outside,
)
from brimful.values import Diagnostic, Estimate, PredictedSpeed, TrialResult

FIXED_TOTAL = (
    "steps at other batch sizes, and so the knee, since a step accumulates batches to a fixed total"
)


def speed_of(
    view: CardView, batch_size: int | None, largest: int | None
) -> PredictedSpeed | Diagnostic:
    """The speed at `batch_size` (None: of the command as it stands), and up to `largest`, from the
    traces taken so far.

    Or what stands in the way of one.
    """
    trials = view.trials
    if rates_of(view.gpu) is None:
        return Diagnostic(
            "no-clock",
            "only the memory of this card is known",
            "so no speed is predicted",
            "for its speed name the card: --gpu NAME (`brimful gpus` lists them)",
        )
    kernels, done, accumulates = kernels_of(view, batch_size)
    if kernels is None:
        return Diagnostic(
            "no-clock",
            "no trial measured a whole step",
            "so no speed is predicted",
            "",
        )
    usual = trials.representative()
    report, notes = usual.reports[0], _left_out(usual)
    samples, note = _samples_of_a_step(trials, kernels, done, accumulates, batch_size)
    if note:
        notes.append(note)
    speed = predict_speed(
        kernels,
        view.gpu,
        batch_size,
        largest,
        _of_mean_batches(samples, mean_share(report)),
        notes=tuple(notes),
        ranks=report.world_size,
        draws=not accumulates and trials.in_batches,
    )
    assert speed is not None
    at = done.get(batch_size) or done[_smallest(done)]
    speed = replace(
        speed, environments=report.environments, batches_per_step=batches_per_step(at) or 1
    )
    return speed if trials.in_batches else replace(speed, batch_size=None)


def _samples_of_a_step(
    trials: Trials,
    kernels: KernelModel | ScaledKernels,
    done: Mapping[int | None, TrialResult],
    accumulates: bool,
    batch_size: int | None,
) -> tuple[Callable[[int], float] | None, str]:
    """How many samples a step has at a batch size, None where no trial counted any; and what is to
    be noted of the count."""
    if not trials.in_batches:
        usual = trials.representative().samples_per_step
        return (_always(usual) if usual else None), ""
    samples = samples_by_size({size or 0: trial.samples_per_step for size, trial in done.items()})
    if accumulates:
        return samples, FIXED_TOTAL
    if samples is None or batch_size is None:
        return samples, ""
    first, last = kernels.fitted_at[0], kernels.fitted_at[-1]
    same = samples(first)
    if first == last or same != samples(last):
        return samples, ""
    if kernels.at(first) == kernels.at(last):
        return _always(same), ""  # the script ignores the batch size
    return float, (  # the work of a step grows with the batch size
        "samples are counted as the batch size, since the steps' own count does not change with it"
    )


def largest_with_a_step(trials: Trials, largest: int | None) -> int | None:
    """Of the batch sizes up to `largest` the largest at which an epoch has the batches of a step;
    `largest` where nobody knows of a smaller one."""
    done = trials.completed()
    samples_at = samples_by_size({n or 0: shown.samples_per_step for n, shown in done.items()})
    result, length = trials.representative(), trials.dataset_length()
    if not largest or not samples_at or not length:
        return largest
    if has_a_fixed_total(done) or steps_at_the_end(result):
        return largest
    samples = length * result.reports[0].world_size / share_of_main(result)
    batches = batches_per_step(done[_smallest(done)]) or 1
    drops_last = any(loader.drop_last for loader in loaders(result, "train"))

    def is_without(size: int) -> bool:
        return not steps_of_epoch(samples, samples_at(size), batches, drops_last).steps

    return bisect_left(range(1, largest + 1), True, key=is_without) or largest


def kernels_of(
    view: CardView, batch_size: int | None
) -> tuple[KernelModel | ScaledKernels | None, dict[int | None, TrialResult], bool]:
    """(The kernels of a step at any batch size, None where no trial measured a whole one; the
    trials that they are from; whether a step accumulates to a fixed total.)"""
    done = {
        size: result
        for size, result in view.trials.completed().items()
        if (size is None) == (batch_size is None)
    }
    accumulates = has_a_fixed_total(done)
    if not accumulates:
        done = with_whole_steps(done)
    return view.trials.kernel_model(done, alike=not accumulates), done, accumulates


def seconds_outside_steps(view: CardView, batch_size: int | None) -> dict[int | None, Estimate]:
    """Of a sample of an evaluation, by the place of its loader in a report, and (None) from one
    pass over the training's data to the next, each where a trial showed it."""
    works = view.trials.outside(batch_size)
    seconds = {work.loader: seconds_outside(work, view.gpu) for work in works}
    return {loader: estimate for loader, estimate in seconds.items() if estimate is not None}


def _of_mean_batches(
    samples: Callable[[int], float] | None, share: float
) -> Callable[[int], float] | None:
    return samples if samples is None or share == 1 else lambda size: samples(size) * share


def _always(samples: float) -> Callable[[int], float]:
    return lambda size: samples


def has_a_fixed_total(done: Mapping[int | None, TrialResult]) -> bool:
    """Whether as many batches make a step as come to the same samples at every batch size."""
    counted = {size or 0: result.samples_per_step for size, result in done.items()}
    batches = {
        size or 0: count for size, result in done.items() if (count := batches_per_step(result))
    }
    return is_of_a_fixed_total(counted, batches)


def with_whole_steps(done: Mapping[int | None, TrialResult]) -> dict[int | None, TrialResult]:
    """The trials whose steps have as many batches as those of the smallest batch size.

    Near the size of the data set an epoch ends in the middle of a step that accumulates, and the
    step is shorter than others.
    """
    if not done:
        return {}
    usual = batches_per_step(done[_smallest(done)])
    return {size: result for size, result in done.items() if batches_per_step(result) == usual}


def _smallest(done: Mapping[int | None, TrialResult]) -> int | None:
    return min(done, key=lambda size: size or 0)


def _left_out(result: TrialResult) -> list[str]:
    """What happens in a step and is not in its predicted time."""
    report = result.reports[0]
    notes = []
    if report.worst_batch is not None and report.worst_batch.varies:
        if report.worst_batch.mean_samples is None:
            notes.append("this is for the largest batch there can be; ordinary ones are faster")
        else:
            notes.append(
                "a step is as long as that of the batch that needs the most memory, and has a "
                "mean batch's samples"
            )
    if any("compile" in name for name in report.approximations):
        notes.append("the trial ran the model as it is; compiled, it is faster as a rule")
    return notes
