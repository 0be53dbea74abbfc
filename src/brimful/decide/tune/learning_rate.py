"""What a changed batch size means for the learning rate: advice, never a change made silently.

Linear for SGD: Goyal et al. 2017, arXiv 1706.02677. Square root for Adam and its kind: Malladi et
al. 2022, arXiv 2205.10287. Both hold up to a critical batch size that depends on the task
(McCandlish et al. 2018, arXiv 1812.06162).
"""

import math

from brimful.values import Diagnostic

# Parts of class names: FusedAdam, AdamW8bit, PagedAdamW32bit, DeepSpeedCPUAdam are all Adam.
_ADAPTIVE = ("adam", "rmsprop", "adagrad", "adadelta", "lamb", "lion", "adafactor")
_SGD = ("sgd", "lars")


def scaled_learning_rate(
    rate: float, before: int, after: int, optimizer: str
) -> tuple[float, str] | None:
    """The learning rate that keeps training alike when the effective batch goes from `before` to
    `after` samples.

    Returns it with the rule's name, "linear" or "square root"; None for an optimizer for which no
    rule is known.
    """
    if before <= 0 or after <= 0:
        raise ValueError(f"batch sizes are 1 or more, not {before} and {after}")
    name, ratio = optimizer.lower(), after / before
    if any(part in name for part in _ADAPTIVE):
        return rate * math.sqrt(ratio), "square root"
    return (rate * ratio, "linear") if any(part in name for part in _SGD) else None


def learning_rate_advice(
    rate: float | None, before: int | None, after: int | None, optimizer: str | None
) -> Diagnostic | None:
    """What to consider when the effective batch size changes; None when it does not, or is not
    known.
    """
    if not before or not after or before == after:
        return None
    problem = (
        f"The batch size goes from {before:,} to {after:,}, {after / before:.3g} times as much."
    )
    steps = "An epoch has fewer steps" if after > before else "An epoch has more steps"
    explanation = (
        f"{steps}, and the learning rate that was right may not be any more. brimful leaves it "
        "as it is."
    )
    suggestion = (
        "Consider the learning rate anew: linear in the batch size for SGD, by its square root "
        "for Adam; with a warm-up."
    )
    scaled = scaled_learning_rate(rate, before, after, optimizer) if rate and optimizer else None
    if scaled is not None:
        value, rule = scaled
        paper = "arXiv 1706.02677" if rule == "linear" else "arXiv 2205.10287"
        suggestion = (
            f"Try {value:.3g} instead of {rate:g} (the {rule} rule for {optimizer}, {paper}), "
            "with a warm-up, and compare."
        )
    return Diagnostic("learning-rate-scaling", problem, explanation, suggestion)
