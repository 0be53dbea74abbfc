"""The learning rate as a function of the samples seen, and of nothing else.

A schedule in steps bends when the batch size changes; one in samples does not. A step uses the samples seen at its end, so
that the first one moves, and the last one is at the schedule's end.

Warm-up and cosine: Loshchilov and Hutter 2016, arXiv 1608.03983; Goyal et al. 2017, arXiv 1706.02677. Warm-up, stable, decay:
Hu et al. 2024, arXiv 2404.06395. One-cycle: Smith and Topin 2017, arXiv 1708.07120 (of the rate alone: momentum stays).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from brimful.errors import UsageError
from brimful.train.checking import check_types
from brimful.train.effective import Effective

__all__ = ["KINDS", "Schedule", "ScheduleConfig"]

KINDS = ("cosine", "wsd", "constant", "one_cycle")
_READ_BY = {"decay_share": "wsd", "rise_share": "one_cycle", "start_share": "one_cycle"}


@dataclass(frozen=True)
class ScheduleConfig:
    """Raises UsageError with the dotted name of what cannot be meant.

    warmup_epochs, warmup_samples: linear from 0 to the peak, one of the two at most; for one_cycle, the length of its rise.
    floor_lr: the learning rate is never below it, in the warm-up neither.
    decay_share: the last part of a "wsd" training, which falls linearly to the floor.
    rise_share, start_share: a "one_cycle" rises from start_share × peak over that part of the training (0.3 and 1/25 are
        torch.optim.lr_scheduler.OneCycleLR's), and falls to the floor over the rest; both along a cosine.
    """

    kind: str = "cosine"
    warmup_epochs: float | None = None
    warmup_samples: float | None = None
    floor_lr: float = 0.0
    decay_share: float = 0.2
    rise_share: float = 0.3
    start_share: float = 0.04

    def __post_init__(self) -> None:
        check_types(self, "config.schedule")
        if self.kind not in KINDS:
            raise UsageError(
                f"config.schedule.kind = {self.kind!r}: there is no such schedule",
                suggestion=f"Name one of {', '.join(KINDS)}.",
            )
        if self.warmup_epochs is not None and self.warmup_samples is not None:
            raise UsageError(
                f"config.schedule.warmup_epochs = {self.warmup_epochs} and warmup_samples = {self.warmup_samples}: "
                "a warm-up has one length",
                suggestion="Give one of the two.",
            )
        for name in ("warmup_epochs", "warmup_samples", "floor_lr"):
            value = getattr(self, name)
            _check(name, value, value is None or 0 <= value < math.inf, "it is 0 or more")
        for name in ("decay_share", "rise_share", "start_share"):
            value = getattr(self, name)
            _check(name, value, 0 < value <= 1, "it is more than 0 and at most 1")
        self._check_that_all_is_read()

    def _check_that_all_is_read(self) -> None:
        for field in dataclasses.fields(self):
            reader, value = _READ_BY.get(field.name), getattr(self, field.name)
            if reader and reader != self.kind and value != field.default:
                raise UsageError(
                    f"config.schedule.{field.name} = {value!r}: the {self.kind} schedule has no such setting",
                    f"It is one of {reader}, and would have no effect.",
                    f"Leave it at {field.default!r}, or choose {reader}.",
                )
        if self.rise_share != ScheduleConfig.rise_share and (self.warmup_epochs, self.warmup_samples) != (None, None):
            raise UsageError(
                f"config.schedule.rise_share = {self.rise_share!r} beside a warm-up: the rise has one length",
                "The warm-up is that length, and rise_share would have no effect.",
                "Give one of the two.",
            )


def _check(name: str, value: object, holds: bool, sentence: str) -> None:
    if not holds:
        raise UsageError(f"config.schedule.{name} = {value!r}: {sentence}", suggestion=f"Give another {name}.")


class Schedule:
    """`lr(samples_seen)` for a training of `total_samples`, over all ranks and epochs.

    Continuous in the samples, and between the floor and the peak. Raises UsageError where the floor is above the peak, or
    warm-up and decay together are longer than the training.
    """

    def __init__(self, config: ScheduleConfig, peak_lr: float, total_samples: float, samples_per_epoch: float):
        if config.floor_lr > peak_lr:
            raise UsageError(
                f"config.schedule.floor_lr = {config.floor_lr:g}: the peak learning rate is {peak_lr:g}",
                "A floor is below the peak.",
                "Lower the floor or raise the learning rate.",
            )
        self.config = config
        self.peak_lr = peak_lr
        self.total_samples = float(total_samples)
        self.warmup_samples = self._warm_up(samples_per_epoch)
        self.decay_samples = config.decay_share * self.total_samples if config.kind == "wsd" else 0.0
        # A warm-up of the whole training is told, not refused: a trial of some steps with the settings of a long training.
        if self.warmup_samples < self.total_samples < self.warmup_samples + self.decay_samples:
            raise UsageError(
                f"A warm-up of {self.warmup_samples:,.0f} samples and a decay of {self.decay_samples:,.0f} are longer than the "
                f"training of {self.total_samples:,.0f}.",
                suggestion="Make the warm-up or config.schedule.decay_share smaller.",
            )

    def _warm_up(self, samples_per_epoch: float) -> float:
        if self.config.warmup_epochs is not None:
            return self.config.warmup_epochs * samples_per_epoch
        if self.config.warmup_samples is not None:
            return float(self.config.warmup_samples)
        return self.config.rise_share * self.total_samples if self.config.kind == "one_cycle" else 0.0

    def lr(self, samples_seen: float) -> float:
        """The learning rate of the step at whose end `samples_seen` samples have been trained on, over all ranks."""
        if samples_seen < 0:
            raise ValueError(f"{samples_seen} samples seen")
        rate = self._rising(samples_seen) if samples_seen < self.warmup_samples else self._after(samples_seen)
        return min(self.peak_lr, max(self.config.floor_lr, rate))  # rounding may step over either by one unit

    def _rising(self, seen: float) -> float:
        share = seen / self.warmup_samples
        if self.config.kind == "one_cycle":
            start_lr = max(self.config.floor_lr, self.config.start_share * self.peak_lr)
            return _cosine(start_lr, self.peak_lr, share)
        return self.peak_lr * share

    def _after(self, seen: float) -> float:
        floor_lr, left = self.config.floor_lr, self.total_samples - self.warmup_samples
        if self.config.kind == "constant" or left <= 0:
            return self.peak_lr
        if self.config.kind == "wsd":
            share = (seen - (self.total_samples - self.decay_samples)) / self.decay_samples
            return self.peak_lr + (floor_lr - self.peak_lr) * min(1.0, max(0.0, share))
        return _cosine(self.peak_lr, floor_lr, min(1.0, (seen - self.warmup_samples) / left))

    def told(self) -> list[Effective]:
        """The schedule, and its warm-up in samples."""
        config = self.config
        shape = f"in samples seen, to {self.total_samples:,.0f}; peak {self.peak_lr:g}, floor {config.floor_lr:g}"
        rows = [Effective("schedule", config.kind, config.kind, shape)]
        asked = config.warmup_epochs if config.warmup_epochs is not None else config.warmup_samples
        if self.warmup_samples:
            unit = "epochs" if config.warmup_epochs is not None else "samples"
            why = f"asked for in {unit}" if asked is not None else f"the rise is {config.rise_share:g} of the training"
            if self.warmup_samples >= self.total_samples:
                why += f"; the training ends before it, at {self.lr(self.total_samples):.3g} of {self.peak_lr:.3g}"
            rows.append(Effective("warm-up samples", asked, round(self.warmup_samples), why))
        return rows


def _cosine(start: float, end: float, share: float) -> float:
    """From `start` to `end` along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
