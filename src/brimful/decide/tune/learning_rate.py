"""What a changed batch size means for the learning rate and β2: advice, never a change made
silently.

Linear for SGD: Goyal et al. 2017, arXiv 1706.02677. Square root for Adam and its kind: Malladi et
al. 2022, arXiv 2205.10287. Both hold up to a critical batch size that depends on the task: the
gradient noise scale of McCandlish et al. 2018, arXiv 1812.06162, where the best rate of SGD is in
proportion to 1 / (1 + noise scale / batch size), and that of Adam to a power of it.
"""

from brimful.values import Diagnostic
from brimful_inside.wire import OptimizerSeen

# Parts of class names: FusedAdam, AdamW8bit, PagedAdamW32bit, DeepSpeedCPUAdam are all Adam.
_ADAPTIVE = ("adam", "rmsprop", "adagrad", "adadelta", "lamb", "lion", "adafactor")
_SGD = ("sgd", "lars")
_WITH_BETA2 = ("adam", "lamb")

# Assumed: the lowest β2 that large language models are trained with (Brown et al. 2020, arXiv
# 2005.14165); lower, and the mean of squares is that of a few steps.
LEAST_BETA2 = 0.95

_PAPERS = {"linear": "arXiv 1706.02677", "square root": "arXiv 2205.10287"}
_NOISE_PAPER, _BETA2_PAPER = "arXiv 1812.06162", "arXiv 2507.07101"


def scaled_learning_rate(
    rate: float, before: float, after: float, optimizer: str, noise_scale: float | None = None
) -> tuple[float, str] | None:
    """The learning rate that keeps training alike when the effective batch goes from `before` to
    `after` samples; with a gradient noise scale (in samples) it rises up to that alone.

    Returns it with the rule's name, "linear" or "square root"; None for an optimizer for which no
    rule is known.
    """

    name, ratio = optimizer.lower(), after / before
    if noise_scale is not None:
        ratio *= (before + noise_scale) / (after + noise_scale)
    if any(part in name for part in _ADAPTIVE):
        return rate * ratio**0.5, "square root"
    return (rate * ratio, "linear") if any(part in name for part in _SGD) else None


def scaled_beta2(beta2: float, before: float, after: float, optimizer: str) -> float | None:
    """The β2 of Adam with which its mean of squares spans as many samples as before (Marek et al.
    2025, arXiv 2507.07101), and no fewer steps than `LEAST_BETA2` does; None for another optimizer.
    """
    if not any(part in optimizer.lower() for part in _WITH_BETA2):
        return None
    return max(beta2 ** (after / before), min(beta2, LEAST_BETA2))


def users_rate(optimizer: OptimizerSeen) -> float | None:
    """The user's own learning rate: a schedule starts at a part of it, and keeps it as the maximum
    or the initial rate.
    """
    rates = optimizer.max_learning_rates or optimizer.initial_learning_rates
    rates = rates or optimizer.first_learning_rates
    return rates[0] if rates else None


def going_with(
    optimizer: OptimizerSeen, before: float, after: float, noise_scale: float
) -> tuple[float | None, float | None]:
    """(learning rate, β2) that go with `after` samples in a step."""
    rate, beta2, name = users_rate(optimizer), optimizer.beta2, optimizer.name
    scaled = scaled_learning_rate(rate, before, after, name, noise_scale) if rate else None
    return scaled and scaled[0], beta2 and scaled_beta2(beta2, before, after, name)


def rules_text(optimizer: OptimizerSeen, noise_scale: float) -> str | None:
    """By which rules these are, with their sources; None where there is none."""
    scaled = scaled_learning_rate(1.0, 1, 1, optimizer.name)
    if scaled is None:
        return None
    text = f"The learning rate (lr) goes by {_rule_text(scaled[1], optimizer.name, noise_scale)}"
    if optimizer.beta2 and scaled_beta2(optimizer.beta2, 1, 1, optimizer.name):
        text += f", β2 by the samples that it spans, not below {LEAST_BETA2} ({_BETA2_PAPER})"
    return f"{text}. It is advice: brimful leaves both as they are."


def _rule_text(rule: str, optimizer: str, noise_scale: float | None) -> str:
    """ "the square root rule for AdamW, arXiv 2205.10287"."""
    known = "" if noise_scale is None else f", up to the noise scale, {_NOISE_PAPER}"
    return f"the {rule} rule for {optimizer}, {_PAPERS[rule]}{known}"


def learning_rate_advice(
    rate: float | None,
    before: int | None,
    after: int | None,
    optimizer: str | None,
    noise_scale: float | None = None,
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
    scaled = scaled_learning_rate(rate, before, after, name, noise_scale) if rate else None
    if scaled is not None:
        rule = _rule_text(scaled[1], name, noise_scale)
        suggestion = (
            f"Try {scaled[0]:.3g} instead of {rate:g} ({rule}), with a warm-up, and compare."
        )
    return Diagnostic("learning-rate-scaling", problem, explanation, suggestion)
