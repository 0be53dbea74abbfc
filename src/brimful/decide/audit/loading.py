"""How many loader workers a training needs, from how long it waits for its data.

One worker makes a batch in `p` seconds, the device works on it for `c` seconds. Workers make batches side by side, so `w`
of them deliver one every ``p / w`` seconds; the training waits as long as that is more than `c`, and ``ceil(p / c)``
workers are enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_STARVED = 0.02  # of a step: under this share of computing, p / c says nothing any more


@dataclass(frozen=True)
class Loading:
    """How the loader keeps up. Seconds are of one step."""

    share: float  # of a step, waited for data
    making_s: float  # that one worker (or the training process itself) needs to make the data of a step
    computing_s: float
    workers: int  # in force
    needed: int | None  # workers that would keep up; None where the data takes over 50 times as long as the computing
    cores: int | None  # of this machine; None where not known

    @property
    def curable(self) -> bool:
        """Whether workers alone can cure it here: there is a core for each. (Where loading is waiting, for a disk or a
        network, more workers than cores would do as well, but that cannot be seen from here.)"""
        return self.needed is not None and (self.cores is None or self.needed <= self.cores or self.needed <= self.workers)


def loading_of(step_s: float, waited_s: float, workers: int, cores: int | None = None) -> Loading:
    """What a step of `step_s` seconds, `waited_s` of them waiting, says about the loader with `workers` workers (0: none).

    Where workers wait for nothing (``waited_s`` near 0), making a batch takes them at most ``workers * step_s``; it is
    taken to be that, so `needed` is never more than what is in force then.
    """
    waited_s = min(max(waited_s, 0.0), step_s)
    computing_s = step_s - waited_s
    making_s = waited_s if workers == 0 else workers * step_s
    starved = computing_s <= _STARVED * step_s
    needed = None if starved else max(1, math.ceil(making_s / computing_s - 1e-9))
    if workers and waited_s == 0:
        needed = workers
    return Loading(waited_s / step_s if step_s > 0 else 0.0, making_s, computing_s, workers, needed, cores)


def workers_to_try(current: int | None, cores: int) -> tuple[int, ...]:
    """Worker counts worth a trial besides the current one: none, one, half the cores, all the cores but one; ascending."""
    candidates = {0, 1, cores // 2, max(1, cores - 1)}
    return tuple(sorted(count for count in candidates if count != current and 0 <= count <= max(1, cores)))
