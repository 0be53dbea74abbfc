"""Soonest to the same loss: the batch size at which the time of a step, times how many it takes, is
least.

A loss takes steps in proportion to 1 + noise scale / B, for B samples in a step (McCandlish et al.
2018, arXiv 1812.06162, section 2.2; over ranks and accumulated batches), and so a time in
proportion to (1 + noise scale / B) x step_s(B) = noise scale / `pace`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from brimful.decide.speed.measured import TOLERANCE
from brimful.decide.tune.learning_rate import going_with, rules_text
from brimful.decide.tune.sizes import tried_sizes
from brimful.values import (
    Estimate,
    Objective,
    Optima,
    Optimum,
    Point,
    Setting,
    TrialResult,
    TriedSize,
)
from brimful_inside.wire import OptimizerSeen

# Their step has the sign of the gradient, or its singular vectors, and not its norm, so that the
# noise scale misleads.
_NORMLESS = ("lion", "muon", "signsgd", "signum")
_CAVEAT = (
    "The noise scale grows during training, so its value now is a lower end; that steps to a loss "
    "are in proportion to 1 + noise scale / samples in a step is McCandlish's law (arXiv "
    "1812.06162); for sign and spectral optimizers it misleads (arXiv 2602.03001)."
)


def pace(samples_per_s: float, samples_per_step: float, noise_scale: float) -> float:
    """Samples a second, each counted by what it teaches in a step of so many beside one in a very
    small step. With an infinite noise scale a sample teaches as much in any step.
    """
    return samples_per_s / (1 + samples_per_step / noise_scale)


def at_its_pace(run: TrialResult, noise_scale: float | None) -> TrialResult:
    """The run, with its pace for its speed; as it is without a noise scale."""
    size = run.samples_per_step or run.trial.settings.get("batch_size")
    if noise_scale is None or not run.samples_per_s or not isinstance(size, int):
        return run
    taught = pace(1.0, size, noise_scale)
    of_cpu = run.samples_per_cpu_s
    return replace(
        run,
        samples_per_s=taught * run.samples_per_s,
        samples_per_cpu_s=None if of_cpu is None else taught * of_cpu,
    )


def with_speeds(results: Sequence[TrialResult], speeds: Sequence[Point]) -> list[Optimum]:
    """Batch sizes with their speeds, as far as trials tell how many samples are in a step."""
    sizes = [TriedSize(point.batch_size, samples_per_s=point.value) for point in speeds]
    return [
        Optimum(row.batch_size, row.effective_batch.value, row.samples_per_s)
        for row in tried_sizes(results, sizes)
        if row.effective_batch and row.samples_per_s and row.samples_per_s.value
    ]


def soonest(rows: Sequence[Optimum], noise_scale: float) -> Optimum:
    """The smallest of the sizes within the tolerance of the best pace; with an infinite noise
    scale, of most samples a second.
    """
    best = max(_pace(row, noise_scale) for row in rows)
    near = (row for row in rows if _pace(row, noise_scale) >= best * (1 - TOLERANCE))
    return min(near, key=lambda row: row.batch_size)


def _pace(row: Optimum, noise_scale: float) -> float:
    return pace(row.samples_per_s.value, row.samples_per_step, noise_scale)


def optima(
    rows: Sequence[Optimum],
    noise_scale: Estimate,
    objective: Objective,
    chosen: Setting | None,
    asked: Setting | None,
    optimizer: OptimizerSeen | None,
) -> Optima | None:
    """Both optima, and the user's own size (`asked`); the plan's is the one of its objective, also
    where runs by turns said otherwise than the medians in `rows`. None without two speeds.
    """
    if len(rows) < 2:
        return None
    scale = noise_scale.value
    by_size: dict[Setting | None, Optimum] = {row.batch_size: row for row in rows}
    fastest, learns, users_own = soonest(rows, math.inf), soonest(rows, scale), by_size.get(asked)
    fastest = by_size.get(chosen, fastest) if objective is Objective.THROUGHPUT else fastest
    learns = by_size.get(chosen, learns) if objective is Objective.LEARNING else learns

    def beside(row: Optimum) -> Optimum:
        row = replace(row, time_to_loss=_pace(learns, scale) / _pace(row, scale))
        if optimizer is None or users_own is None:
            return row
        before, after = users_own.samples_per_step, row.samples_per_step
        rate, beta2 = going_with(optimizer, before, after, scale)
        return replace(row, learning_rate=rate, beta2=beta2)

    name = optimizer.name if optimizer is not None else ""
    misleads = name if any(part in name.lower() for part in _NORMLESS) else None
    rules = rules_text(optimizer, scale) if optimizer and users_own else None
    caveat = _CAVEAT + (f" {misleads} is one of these." if misleads else "")
    return Optima(
        noise_scale,
        beside(fastest),
        beside(learns),
        beside(users_own) if users_own else None,
        misleads,
        (rules, caveat) if rules else (caveat,),
    )


def in_batch_sizes(noise_scale: Estimate | None, run: TrialResult) -> float | None:
    """The noise scale as a batch size of the command, whose step may have several."""
    size = run.trial.settings.get("batch_size")
    each = run.samples_per_step / size if run.samples_per_step and isinstance(size, int) else 1
    return noise_scale.value / each if noise_scale is not None else None
