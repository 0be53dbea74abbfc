"""How many loader workers a training needs, from how long it waits for its data."""

from __future__ import annotations

import math

_STARVED = 0.02  # of a step: under this share of computing, p / c shows nothing any more


def workers_needed(step_s: float, waited_s: float, workers: int) -> int | None:
    """Workers that keep up, by a step of `step_s` seconds, `waited_s` of them waiting for `workers` workers (0: none).

    One worker makes a batch in `p` seconds, the device works on it for `c`. Side by side `w` workers deliver one every
    ``p / w`` seconds; the training waits as long as that is more than `c`, and ``ceil(p / c)`` workers are enough. Workers that
    nobody waits for are taken to be as many as it needs. None where the data takes over 50 times as long as the computing.
    """
    waited_s = min(max(waited_s, 0.0), step_s)
    computing_s = step_s - waited_s
    if workers and waited_s == 0:
        return workers
    if computing_s <= _STARVED * step_s:
        return None
    making_s = workers * step_s if workers else waited_s
    return max(1, math.ceil(making_s / computing_s - 1e-9))


def workers_to_try(current: int | None, cores: int) -> tuple[int, ...]:
    """Worker counts worth a trial besides the current one: none, one, half the cores, all the cores but one; ascending."""
    candidates = {0, 1, cores // 2, max(1, cores - 1)}
    return tuple(sorted(count for count in candidates if count != current and 0 <= count <= max(1, cores)))
