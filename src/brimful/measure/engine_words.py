"""What the errors of `brimful.train` mean to those who look at a training from outside, known by their names and words."""

from __future__ import annotations

import re

from brimful.errors import DoesNotFit
from brimful.values import Failure
from brimful_inside.simulator.oom_patterns import CONSEQUENCE

__all__ = ["follows", "is_final", "is_for_memory"]

_DOES_NOT_FIT = f"{DoesNotFit.__module__}.{DoesNotFit.__qualname__}"
_SMALLER_FITS = "brimful.train.oom_limits.SmallerFits"
_ANOTHER_RANK = "brimful.train.distributed.ranks.RankFailed"
_OF_ANOTHER_RANK = re.compile(r"does not fit into the memory of rank \d+")


def is_final(failure: Failure) -> bool:
    """Whether a training that makes its micro-batches smaller by itself could not: no smaller batch size would help it."""
    return failure.type == _DOES_NOT_FIT


def is_for_memory(failure: Failure) -> bool:
    """Whether memory was missing, whatever the words of the error say."""
    return failure.type in (_DOES_NOT_FIT, _SMALLER_FITS)


def follows(failure: Failure) -> bool:
    """Whether it only says that another process fell."""
    if failure.type == _ANOTHER_RANK or (is_final(failure) and _OF_ANOTHER_RANK.search(failure.message)):
        return True
    return bool(CONSEQUENCE.search(failure.type) or CONSEQUENCE.search(failure.message))
