"""What a changed batch size means for the learning rate: advice, never a change made silently.

Linear for SGD: Goyal et al. 2017, arXiv 1706.02677. Square root for Adam and its kind: Malladi et
al. 2022, arXiv 2205.10287. Both hold up to a critical batch size that depends on the task.
"""

from brimful.values import Diagnostic
from brimful_inside.wire import OptimizerSeen

# Parts of class names: FusedAdam, AdamW8bit, PagedAdamW32bit, DeepSpeedCPUAdam are all Adam.
_ADAPTIVE = ("adam", "rmsprop", "adagrad", "adadelta", "lamb", "lion", "adafactor")
_SGD = ("sgd", "lars")

_PAPERS = {"linear": "arXiv 1706.02677", "square root": "arXiv 2205.10287"}


def scaled_learning_rate(
    rate: float, before: float, after: float, optimizer: str
) -> tuple[float, str] | None:
    """The learning rate that keeps training alike when the effective batch goes from `before` to
    `after` samples.

    Returns it with the rule's name, "linear" or "square root"; None for an optimizer for which no
    rule is known.
    """
    name, ratio = optimizer.lower(), after / before
    if any(part in name for part in _ADAPTIVE):
        return rate * ratio**0.5, "square root"
    return (rate * ratio, "linear") if any(part in name for part in _SGD) else None


def users_rate(optimizer: OptimizerSeen) -> float | None:
    """The user's own learning rate: a schedule starts at a part of it, and keeps it as the maximum
    or the initial rate.
    """
    rates = optimizer.max_learning_rates or optimizer.initial_learning_rates
    rates = rates or optimizer.first_learning_rates
    return rates[0] if rates else None


def learning_rate_advice(
    rate: float | None,
    before: int | None,
    after: int | None,
    optimizer: str | None,
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
    name = optimizer or ""
    scaled = scaled_learning_rate(rate, before, after, name) if rate else None
    if scaled is not None:
        rule = f"the {scaled[1]} rule for {name}, {_PAPERS[scaled[1]]}"
        suggestion = (
            f"Try {scaled[0]:.3g} instead of {rate:g} ({rule}), with a warm-up, and compare."
        )
    return Diagnostic("learning-rate-scaling", problem, explanation, suggestion)
