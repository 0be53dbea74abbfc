"""What a batch other than the reference does to the learning rate and to Adam's beta2.

Linear for SGD: Goyal et al. 2017, arXiv 1706.02677. Square root for Adam's family: Malladi et al. 2022, arXiv 2205.10287.
beta2 held at its half-life in samples, beta2' = beta2 ** (batch / reference): Marek et al. 2025, arXiv 2507.07101 (in tokens,
for language models). Where each holds is in docs/training.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.decide.audit.learning_rate import scaled_learning_rate
from brimful.errors import UsageError
from brimful.train.checking import check_types
from brimful.train.effective import Effective

__all__ = ["Scaled", "ScalingConfig", "scale"]

RULES = ("none", "linear", "sqrt", "auto")
_STANDS_FOR = {"linear": "sgd", "sqrt": "adam"}  # an optimizer for which decide/audit/learning_rate.py has that rule


@dataclass(frozen=True)
class ScalingConfig:
    """rule: how the learning rate follows the batch; "auto" is linear for SGD and square root for the others.

    reference_batch: the effective batch, in samples, at which the learning rate (and beta2) given is right.
    hold_beta2: with a reference batch, Adam's beta2 forgets over as many samples as it would there, whatever the rule.
    """

    rule: str = "none"
    reference_batch: int | None = None
    hold_beta2: bool = True

    def __post_init__(self) -> None:
        check_types(self, "config.scaling")
        if self.rule not in RULES:
            raise UsageError(
                f"config.scaling.rule = {self.rule!r}: there is no such rule", suggestion=f"Name one of {', '.join(RULES)}."
            )
        if self.reference_batch is not None and self.reference_batch < 1:
            raise UsageError(
                f"config.scaling.reference_batch = {self.reference_batch}: a batch has 1 sample or more",
                suggestion="Give the effective batch at which the learning rate was found.",
            )
        if self.rule != "none" and self.reference_batch is None:
            raise UsageError(
                f"config.scaling.rule = {self.rule!r} without config.scaling.reference_batch",
                "A learning rate can only be scaled from the batch at which it is right.",
                "Give the effective batch at which the learning rate was found.",
            )


@dataclass(frozen=True)
class Scaled:
    """What is in force at the effective batch, and how it came about."""

    lr: float
    beta2: float
    told: tuple[Effective, ...]


def scale(optimizer: str, lr: float, beta2: float, config: ScalingConfig, effective_batch: int) -> Scaled:
    """The learning rate and beta2 of `optimizer` at `effective_batch` samples an update."""
    scaled_lr, lr_why = _scale_lr(optimizer, lr, config, effective_batch)
    told = [Effective("learning rate", lr, scaled_lr, lr_why)]
    if optimizer not in ("adam", "adamw"):
        return Scaled(scaled_lr, beta2, tuple(told))
    scaled_beta2, beta2_why = _scale_beta2(beta2, config, effective_batch)
    told.append(Effective("beta2", beta2, scaled_beta2, beta2_why))
    return Scaled(scaled_lr, scaled_beta2, tuple(told))


def _scale_lr(optimizer: str, lr: float, config: ScalingConfig, batch: int) -> tuple[float, str]:
    reference = config.reference_batch
    if config.rule == "none" or reference is None:
        return lr, f"as given: no scaling rule asked for, and the effective batch is {batch:,}"
    if batch == reference:
        return lr, f"as given: the effective batch is the reference batch, {batch:,}"
    scaled = scaled_learning_rate(lr, reference, batch, _STANDS_FOR.get(config.rule, optimizer))
    if scaled is None:
        raise UsageError(
            f"config.scaling.rule = {config.rule!r}: no rule is known for {optimizer}",
            suggestion="Choose linear, sqrt or none.",
        )
    value, rule = scaled
    why = f"{rule} rule from batch {reference:,} to {batch:,} ({_paper(rule)})"
    usual = scaled_learning_rate(lr, reference, batch, optimizer)
    if usual is not None and usual[1] != rule:
        why += f"; for {optimizer} the {usual[1]} rule is the one with grounds ({_paper(usual[1])})"
    elif optimizer == "adafactor":
        why += "; by analogy: the paper treats RMSprop and Adam"
    return value, why


def _scale_beta2(beta2: float, config: ScalingConfig, batch: int) -> tuple[float, str]:
    reference = config.reference_batch
    if reference is None:
        return beta2, "as given: without a reference batch there is no half-life to hold"
    if not config.hold_beta2:
        return beta2, "as given: it was asked not to hold its half-life"
    if batch == reference:
        return beta2, f"as given: the effective batch is the reference batch, {batch:,}"
    why = f"half-life held in samples from batch {reference:,} to {batch:,}: beta2 ** (batch / reference) (arXiv 2507.07101)"
    return beta2 ** (batch / reference), why


def _paper(rule: str) -> str:
    return "arXiv 1706.02677" if rule == "linear" else "arXiv 2205.10287"
