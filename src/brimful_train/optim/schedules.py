"""The learning rate as a function of the samples seen: one in steps would bend when the batch size
changes.

A step uses the samples seen at its end, so that the first one moves, and the last one is at the
schedule's end. Sources: cosine, Loshchilov and Hutter 2016 (arXiv 1608.03983); warm-up, and linear
scaling for SGD, Goyal et al. 2017 (arXiv 1706.02677); warm-up, stable, decay, Hu et al. 2024
(arXiv 2404.06395); one-cycle, Smith and Topin 2017 (arXiv 1708.07120, of the rate alone);
square-root scaling for Adam's family, Malladi et al. 2022 (arXiv 2205.10287); beta2 held at its
half-life in samples, Marek et al. 2025 (arXiv 2507.07101). docs/reference/engine.md
has where each holds.
"""

import math

from brimful.errors import UsageError
from brimful.values import EffectiveSetting
from brimful_train.config import ADAMS, ScalingConfig, ScheduleConfig

_PAPERS = {"linear": "arXiv 1706.02677", "square root": "arXiv 2205.10287"}


class Schedule:
    """`lr(samples_seen)` for a training of `total_samples`, over all ranks and epochs.

    Continuous in the samples (step falls at once), and between the floor and the peak. Raises
    UsageError where the floor is above the peak, or warm-up and decay together are longer than the
    training.
    """

    def __init__(
        self, config: ScheduleConfig, peak_lr: float, total_samples: float, samples_per_epoch: float
    ):
        if config.floor_lr > peak_lr:
            raise UsageError(
                f"config.schedule.floor_lr = {config.floor_lr:g}: the peak learning rate is "
                f"{peak_lr:g}",
                "A floor is below the peak.",
                "Lower the floor or raise the learning rate.",
            )
        self.config = config
        self.peak_lr = peak_lr
        self.total_samples = float(total_samples)
        self.warmup_samples = self._warm_up(samples_per_epoch)
        self.step_samples = config.decay_every_epochs * samples_per_epoch
        self.decay_samples = (
            config.decay_share * self.total_samples if config.kind == "wsd" else 0.0
        )
        # A warm-up of the whole training is not refused: a trial of some steps has the settings of
        # a long training.
        if self.warmup_samples < self.total_samples < self.warmup_samples + self.decay_samples:
            raise UsageError(
                f"A warm-up of {self.warmup_samples:,.0f} samples and a decay of "
                f"{self.decay_samples:,.0f} are longer than the "
                f"training of {self.total_samples:,.0f}.",
                suggestion="Make the warm-up or config.schedule.decay_share smaller.",
            )

    def _warm_up(self, samples_per_epoch: float) -> float:
        config = self.config
        if config.warmup_epochs is not None:
            return config.warmup_epochs * samples_per_epoch
        rise = config.rise_share * self.total_samples if config.kind == "one_cycle" else 0.0
        return rise if config.warmup_samples is None else float(config.warmup_samples)

    def lr(self, samples_seen: float) -> float:
        """The learning rate of the step at whose end `samples_seen` samples have been trained on,
        over all ranks.
        """
        shape = self._rising if samples_seen < self.warmup_samples else self._after
        # rounding may step over either by one unit
        return min(self.peak_lr, max(self.config.floor_lr, shape(samples_seen)))

    def _rising(self, samples: float) -> float:
        share = samples / self.warmup_samples
        if self.config.kind == "one_cycle":
            start_lr = max(self.config.floor_lr, self.config.start_share * self.peak_lr)
            return _cosine(start_lr, self.peak_lr, share)
        return self.peak_lr * share

    def _after(self, samples: float) -> float:
        floor_lr, left = self.config.floor_lr, self.total_samples - self.warmup_samples
        if self.config.kind == "constant" or left <= 0:
            return self.peak_lr
        if self.config.kind == "step":
            # the last update of a stretch still has its learning rate, as with PyTorch's StepLR
            falls = max(0, math.ceil(samples / self.step_samples - 1e-9) - 1)
            return self.peak_lr * self.config.decay_factor**falls
        if self.config.kind == "wsd":
            share = (samples - (self.total_samples - self.decay_samples)) / self.decay_samples
            return self.peak_lr + (floor_lr - self.peak_lr) * min(1.0, max(0.0, share))
        return _cosine(self.peak_lr, floor_lr, min(1.0, (samples - self.warmup_samples) / left))

    def rows(self) -> list[EffectiveSetting]:
        """The schedule, and its warm-up in samples."""
        config = self.config
        shape = f"in samples seen, to {self.total_samples:,.0f}; "
        shape += f"peak {self.peak_lr:g}, floor {config.floor_lr:g}"
        if config.kind == "step":
            shape += f"; × {config.decay_factor:g} each {self.step_samples:,.0f} samples"
        rows = [EffectiveSetting("schedule", config.kind, config.kind, shape)]
        asked = config.warmup_epochs if config.warmup_epochs is not None else config.warmup_samples
        if self.warmup_samples:
            unit = "epochs" if config.warmup_epochs is not None else "samples"
            why = (
                f"given in {unit}"
                if asked is not None
                else f"the rise is {config.rise_share:g} of the training"
            )
            if self.warmup_samples >= self.total_samples:
                why += (
                    f"; the training ends before it, at {self.lr(self.total_samples):.3g} of "
                    f"{self.peak_lr:.3g}"
                )
            rows.append(EffectiveSetting("warm-up samples", asked, round(self.warmup_samples), why))
        return rows


def _cosine(start: float, end: float, share: float) -> float:
    """From `start` to `end` along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def scale(
    optimizer: str, lr: float, beta2: float, config: ScalingConfig, effective_batch: int
) -> tuple[float, float, list[EffectiveSetting]]:
    """The learning rate and beta2 of `optimizer` at `effective_batch` samples an update, and how
    they came about.
    """
    scaled_lr, why = _scale_lr(optimizer, lr, config, effective_batch)
    rows = [EffectiveSetting("learning rate", lr, scaled_lr, why)]
    if optimizer in ADAMS:
        before = beta2
        beta2, why = _scale_beta2(before, config, effective_batch)
        rows.append(EffectiveSetting("beta2", before, beta2, why))
    return scaled_lr, beta2, rows


def _scale_lr(optimizer: str, lr: float, config: ScalingConfig, batch: int) -> tuple[float, str]:
    reference = config.reference_batch
    if config.rule == "none" or reference is None:
        return lr, f"as given: there is no scaling rule, and the effective batch is {batch:,}"
    if batch == reference:
        return lr, f"as given: the effective batch is the reference batch, {batch:,}"
    usual = "linear" if optimizer == "sgd" else "square root"
    rule = {"linear": "linear", "sqrt": "square root", "auto": usual}[config.rule]
    ratio = batch / reference
    why = f"{rule} rule from batch {reference:,} to {batch:,} ({_PAPERS[rule]})"
    if rule != usual:
        why += f"; for {optimizer} the {usual} rule is the one with grounds ({_PAPERS[usual]})"
    elif optimizer == "adafactor":
        why += "; by analogy: the paper treats RMSprop and Adam"
    return lr * (ratio if rule == "linear" else math.sqrt(ratio)), why


def _scale_beta2(beta2: float, config: ScalingConfig, batch: int) -> tuple[float, str]:
    reference = config.reference_batch
    if reference is None:
        return beta2, "as given: without a reference batch there is no half-life to hold"
    if not config.hold_beta2:
        return beta2, "as given: config.scaling.hold_beta2 is off"
    if batch == reference:
        return beta2, f"as given: the effective batch is the reference batch, {batch:,}"
    return beta2 ** (batch / reference), (
        f"half-life held in samples from batch {reference:,} to {batch:,}: "
        "beta2 ** (batch / reference) (arXiv 2507.07101)"
    )
