"""Why a search for speed tried no larger batch size than it did, so that no plan is limited by something unsaid."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Top", "top_sentence"]


class Top(StrEnum):
    """What ended the way up."""

    FLAT = "flat"  # larger sizes were run and brought nothing
    CEILING = "ceiling"  # the largest size that the limits, or what is believed of memory, allow
    MEMORY = "memory"  # the next one was run and did not fit
    FAILED = "failed"  # the next one was run and failed by itself
    TRIALS = "trials"  # no trials were left


_LIMITS = {
    "dataset": "{size:,} samples are all that the training data gives in an epoch",
    "max_batch_size": "{size:,} is the maximum that was given (--max-batch-size)",
    "budget": "by what its memory trials showed, no size above {size:,} is sure to be within the budget",
}


def top_sentence(top: Top | None, size: int, limited_by: str | None, trials: int) -> str | None:
    """Why nothing above `size`, the largest that may be named, was tried; None where larger ones brought nothing.

    `limited_by`: what set the ceiling ("dataset", "max_batch_size" or "budget").
    """
    if top is Top.CEILING:
        return _LIMITS.get(limited_by or "budget", _LIMITS["budget"]).format(size=size)
    return (
        {
            Top.MEMORY: f"what is larger than {size:,} was not within the budget",
            Top.FAILED: f"what was tried above {size:,} failed by itself",
            Top.TRIALS: f"nothing above {size:,} was tried: {trials} trials are the most that a search makes",
        }.get(top)
        if top is not None
        else None
    )
