"""Which checkpoints stay: the newest ones and the best. Pure, so that thousands of histories can be tried."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Kept", "best_of", "to_remove"]


@dataclass(frozen=True)
class Kept:
    """A checkpoint on the disk. `save` counts the checkpoints ever written into the folder: it tells which one is newer.

    The step cannot tell that: who goes on from an older checkpoint writes smaller steps later.
    """

    save: int
    step: int
    score: float | None
    whole: bool
    training: int = 1  # the number of its training's first save: a training that began anew in the folder has another


def best_of(found: Iterable[Kept], best: str) -> Kept | None:
    """The whole one with the best score, of the training that the newest one is of; of equal ones the oldest.

    None where none of these has a score that is a number.
    """
    present = [one for one in found if one.whole]
    training = max(present, key=lambda one: one.save).training if present else None
    scored = [one for one in present if one.training == training and one.score is not None and not math.isnan(one.score)]
    sign = 1 if best == "min" else -1
    return min(scored, key=lambda one: (sign * (one.score or 0.0), one.save), default=None)


def to_remove(found: Sequence[Kept], *, keep_last: int, keep_best: bool, best: str) -> list[Kept]:
    """All but the `keep_last` newest whole ones and, if asked for, the best; oldest first.

    A damaged one does not count, and goes once there are `keep_last` whole ones newer than it.
    """
    newest = sorted((one for one in found if one.whole), key=lambda one: -one.save)[:keep_last]
    if len(newest) < keep_last:
        return []
    stay = {one.save for one in newest}
    if keep_best and (winner := best_of(found, best)) is not None:
        stay.add(winner.save)
    oldest = newest[-1].save
    return sorted((one for one in found if one.save not in stay and one.save < oldest), key=lambda one: one.save)
