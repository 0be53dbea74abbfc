"""Two trainings that take turns in one process, and what their times say: the arithmetic of the
benches of the engine.

The first training is a loop that cannot be stopped from outside (`brimful_train.fit`). It is
stopped from inside: its loss function calls `Turns`, which every `steps` updates lets the second
training make as many, and reads the clocks in between. So a block of one stands between two blocks
of the other, all some tenth of a second long, and what the machine does beside them meets both
alike.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Times:
    """Seconds of each block: of processor time of the whole process, and of wall time."""

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)


class Turns:
    """To be called by the first training at each call of its loss, before anything else. `second`
    makes one update.

    After `n` rounds `second_times` has n blocks and `first_times` n - 1, each between two of the
    second's; the first `warm_up` rounds are not among them. `second_warm_up`: in how many of these
    the second takes part (default: all).
    """

    def __init__(
        self,
        second: Callable[[], None],
        *,
        steps: int,
        calls_per_step: int = 1,
        warm_up: int = 3,
        second_warm_up: int | None = None,
    ):
        self.first_times, self.second_times = Times(), Times()
        self._second, self._steps, self._calls_per_round = second, steps, steps * calls_per_step
        self._warm_up = warm_up
        self._second_begins = 0 if second_warm_up is None else max(0, warm_up - second_warm_up)
        self._calls = 0
        self._begun: tuple[float, float] | None = None

    def __call__(self) -> None:
        number, within = divmod(self._calls, self._calls_per_round)
        self._calls += 1
        if within:
            return
        if self._begun is not None:
            _stop(self.first_times, self._begun)
        begun = _clocks()
        for _ in range(self._steps if number >= self._second_begins else 0):
            self._second()
        if number >= self._warm_up:
            _stop(self.second_times, begun)
            self._begun = _clocks()


def _clocks() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _stop(times: Times, begun: tuple[float, float]) -> None:
    cpu_s, wall_s = _clocks()
    times.cpu_s.append(cpu_s - begun[0])
    times.wall_s.append(wall_s - begun[1])


def paired_ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Each block of the first over the mean of the two blocks of the second around it, so that a
    machine that gets slower or faster at an even pace does not count."""
    if len(second) != len(first) + 1:
        raise ValueError(f"{len(first)} blocks do not stand between {len(second)}")
    return [
        block / ((before + after) / 2)
        for block, before, after in zip(first, second[:-1], second[1:], strict=True)
    ]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, and between which values the middle 80 % lie."""
    if len(values) < 2:
        raise ValueError(f"{len(values)} values have no spread")
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return {"median": statistics.median(values), "p10": tenths[0], "p90": tenths[-1]}


def calibrated(
    step_s: Callable[[int], float],
    target_s: float,
    first: int,
    *,
    multiple: int = 4,
    tries: int = 6,
) -> int:
    """The batch (a multiple of `multiple`) whose step takes about `target_s`: a line through the
    last two batches measured.

    A step's time is a part of its own and a part for each sample; with two batches both are known.
    """
    tried: list[tuple[int, float]] = [(first, step_s(first))]
    batch = first
    for _ in range(tries):
        at, took_s = tried[-1]
        if abs(took_s / target_s - 1) < 0.03:
            break
        before, before_s = tried[-2] if len(tried) > 1 else (0, 0.0)
        slope = (took_s - before_s) / (at - before)
        if slope <= 0:  # noise has the better of two batches that are nearly the same
            break
        wanted = at + (target_s - took_s) / slope
        batch = max(multiple, round(min(wanted, 4 * at) / multiple) * multiple)
        # That line went through zero and is too steep: a neighbour gives the true one.
        if len(tried) == 1 and batch == first:
            batch = max(multiple, first + (multiple if target_s > took_s else -multiple))
        if any(batch == size for size, _ in tried):
            break
        tried.append((batch, step_s(batch)))
    return min(tried, key=lambda pair: abs(pair[1] - target_s))[0]


def seconds_of(step: Callable[[], None], blocks: int = 10, steps: int = 5) -> float:
    """Processor time of one step: the least over blocks, as other processes only ever add to it."""
    for _ in range(steps):
        step()
    times = []
    for _ in range(blocks):
        begun = time.process_time()
        for _ in range(steps):
            step()
        times.append((time.process_time() - begun) / steps)
    return min(times)
