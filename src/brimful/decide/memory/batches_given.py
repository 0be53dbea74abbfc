"""Whether a script's loader follows the batch size, by what it gave in trials at several sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Given:
    """What a trial at some batch size showed."""

    batch: int  # samples of the largest batch that the training loader of a process gave
    per_step: float  # samples that went into a step, over all processes and batches


def loader_cap(given: Mapping[int, Given], length: int | None) -> int | None:
    """The batch beyond which the loader does not follow the size asked, where trials (by size) show
    one; else None.

    Two sizes with the same batch show it where fewer samples than asked go into a step at both
    (else it may be a size for all processes, or one that is accumulated), or where the batch lies
    between the two. So does one size, where the smaller ones were followed. A batch of the whole
    data set (`length`) is no cap.
    """
    for (small, at_small), (large, at_large) in combinations(sorted(given.items()), 2):
        same, batch = at_small == at_large, at_large.batch
        if (
            same
            and _is_part(batch, length)
            and at_large.per_step < large
            and (at_small.per_step < small or small < batch < large)
        ):
            return batch
    return _cap_of_the_largest(given, length)


def _cap_of_the_largest(given: Mapping[int, Given], length: int | None) -> int | None:
    size = max(given, default=0)
    smaller = [other for other in given if other != size]
    if len(smaller) < 2 or given[size].batch >= size or not _is_part(given[size].batch, length):
        return None
    cap = given[size].batch
    followed = all(given[other].batch == min(other, cap) for other in smaller)
    shares = {shown.per_step / shown.batch for shown in given.values()}
    return cap if followed and len(shares) == 1 else None


def _is_part(batch: int, length: int | None) -> bool:
    return length is None or batch < length
