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
from brimful.decide.tune.learning_rate import (
    BETA2_PAPER,
    LEAST_BETA2,
    ignores_the_norm,
    rule_text,
    scaled_beta2,
    scaled_learning_rate,
    users_rate,
)
from brimful.values import (
    Estimate,
    Objective,
    Optima,
    Optimum,
    TrialResult,
    TriedSize,
)
from brimful_inside.wire import OptimizerSeen

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


def soonest(rows: Sequence[TriedSize], noise_scale: float) -> TriedSize | None:
    """The smallest size within the tolerance of the best pace, of those that fit and have a speed;
    with an infinite noise scale, that of most samples a second.
    """
    paces = {row.batch_size: _pace(row, noise_scale) for row in rows if row.fits is not False}
    best = max(paces.values(), default=0.0)
    near = [size for size, value in paces.items() if value and value >= best * (1 - TOLERANCE)]
    return next((row for row in rows if row.batch_size == min(near, default=None)), None)


def _pace(row: TriedSize, noise_scale: float) -> float:
    rate, samples = row.samples_per_s, row.effective_batch
    return pace(rate.value, samples.value, noise_scale) if rate and samples else 0.0


def optima(
    rows: Sequence[TriedSize],
    noise_scale: Estimate,
    objective: Objective,
    chosen: int | None,
    asked: int | None,
    optimizer: OptimizerSeen | None,
) -> Optima | None:
    """Both optima, and the user's own size (`asked`); the plan's is the one of its objective, also
    where runs by turns said otherwise than the medians in `rows`. None without two speeds.
    """
    by_size = {row.batch_size: row for row in rows if _pace(row, noise_scale.value)}
    best = {
        Objective.THROUGHPUT: soonest(rows, math.inf),
        Objective.LEARNING: soonest(rows, noise_scale.value),
    }
    if objective in best and chosen in by_size:
        best[objective] = by_size[chosen]
    fastest, learns = best[Objective.THROUGHPUT], best[Objective.LEARNING]
    if len(by_size) < 2 or fastest is None or learns is None:
        return None
    users_own = by_size.get(asked or 0)
    before = users_own.effective_batch.value if users_own and users_own.effective_batch else None

    def optimum(row: TriedSize) -> Optimum:
        rate, samples = row.samples_per_s, row.effective_batch
        assert rate is not None and samples is not None
        time = _pace(learns, noise_scale.value) / _pace(row, noise_scale.value)
        with_it = _going_with(optimizer, before, samples.value, noise_scale.value)
        return Optimum(row.batch_size, samples.value, rate, time, *with_it)

    return Optima(
        noise_scale,
        optimum(fastest),
        optimum(learns),
        optimum(users_own) if users_own else None,
        optimizer.name if optimizer and ignores_the_norm(optimizer.name) else None,
        (*_rules(optimizer if before else None, noise_scale.value), _CAVEAT),
    )


def _going_with(
    optimizer: OptimizerSeen | None, before: float | None, after: float, noise_scale: float
) -> tuple[float | None, float | None]:
    """(learning rate, β2)."""
    if optimizer is None or before is None:
        return None, None
    rate, beta2 = users_rate(optimizer), optimizer.beta2
    scaled = scaled_learning_rate(rate or 0.0, before, after, optimizer.name, noise_scale)
    return (
        scaled[0] if scaled and rate else None,
        scaled_beta2(beta2, before, after, optimizer.name) if beta2 else None,
    )


def _rules(optimizer: OptimizerSeen | None, noise_scale: float) -> list[str]:
    if optimizer is None or not users_rate(optimizer):
        return []
    scaled = scaled_learning_rate(1.0, 1, 1, optimizer.name)
    if scaled is None:
        return []
    text = f"The learning rate goes by {rule_text(scaled[1], optimizer.name, noise_scale)}"
    if optimizer.beta2 and scaled_beta2(optimizer.beta2, 1, 1, optimizer.name):
        text += f", β2 by the samples that it spans, not below {LEAST_BETA2} ({BETA2_PAPER})"
    return [f"{text}. It is advice: brimful leaves both as they are."]


def in_batch_sizes(noise_scale: Estimate | None, run: TrialResult) -> float | None:
    """The noise scale as a batch size of the command, whose step may have several."""
    size = run.trial.settings.get("batch_size")
    if noise_scale is None or not run.samples_per_step or not isinstance(size, int):
        return noise_scale.value if noise_scale else None
    return noise_scale.value * size / run.samples_per_step
