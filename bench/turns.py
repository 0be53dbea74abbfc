"""Two trainings that take turns in one process, and the ratios of their times.

The first training is a loop that cannot be stopped from outside (`brimful_train.fit`). It is
stopped from inside: its loss function calls `Turns`, which every `steps` updates lets the second
training make as many, and reads the clocks in between. So a block of one stands between two blocks
of the other, all some tenth of a second long, and what the machine does beside them meets both
alike.
"""

import time
from collections.abc import Callable, Sequence

# Of the whole process.
CLOCKS = {"cpu_s": lambda: time.process_time(), "wall_s": lambda: time.perf_counter()}


class Turns:
    """To be called by the first training at each call of its loss, before anything else. `second`
    makes one update.

    `first_times` and `second_times`: seconds of each block, by each clock. After `n` rounds the
    second has n blocks and the first n - 1, each between two of the second's; the first `warm_up`
    rounds are not among them.
    """

    def __init__(
        self, second: Callable[[], None], steps: int, calls_per_step: int = 1, warm_up: int = 3
    ):
        self.first_times, self.second_times = ({clock: [] for clock in CLOCKS} for _ in range(2))
        self._second, self._steps, self._calls_per_round = second, steps, steps * calls_per_step
        self._warm_up, self._calls = warm_up, 0
        self._begun: dict[str, float] | None = None

    def __call__(self) -> None:
        number, within = divmod(self._calls, self._calls_per_round)
        self._calls += 1
        if within:
            return
        if self._begun is not None:
            _stop(self.first_times, self._begun)
        begun = _now()
        for _ in range(self._steps):
            self._second()
        if number >= self._warm_up:
            _stop(self.second_times, begun)
            self._begun = _now()


def _now() -> dict[str, float]:
    return {clock: read() for clock, read in CLOCKS.items()}


def _stop(times: dict[str, list[float]], begun: dict[str, float]) -> None:
    for clock, now in _now().items():
        times[clock].append(now - begun[clock])


def paired_ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Each block of the first over the mean of the two blocks of the second around it, so that a
    machine that gets slower or faster at an even pace does not count."""
    if len(second) != len(first) + 1:
        raise ValueError(f"{len(first)} blocks do not stand between {len(second)}")
    return [
        block / ((before + after) / 2)
        for block, before, after in zip(first, second[:-1], second[1:], strict=True)
    ]
