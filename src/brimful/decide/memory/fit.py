"""What fits: the rule of fitting, the largest batch size under it, and estimates of peaks with their intervals.

*Fits* means that the upper end of the predicted interval of the device peak is within the budget. Device memory is what
nvidia-smi shows: what PyTorch's allocator has reserved, and the context.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from brimful.decide.memory.intervals import RelativeInterval
from brimful.decide.memory.size_model import SizeModel
from brimful.values import Estimate, PeakEstimate, Point, Source
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, AllocatorSettings
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.replay import Peaks, Replayed, replay_cards, worst_of
from brimful_inside.simulator.trace import Trace

WINDOW = 160  # sizes above an edge that are tested one by one, or a tenth of the edge where that is more
REACH = 1.3  # in random programs on small cards, sizes up to 1.28 times a first edge fitted again
FEWEST_TESTS, MOST_TESTS = 64, 600
TESTED_ROWS = 400_000  # all tests together: a second or two
ANY_BYTES = 1 << 62
ENDLESS = 1 << 24  # a batch size that nobody has
FEWEST_POINTS, CURVE_POINTS = 8, 24
DRAWN_ROWS = 120_000  # all points of a curve together: a third of a second


@dataclass(frozen=True)
class Card:
    """What predictions of device peaks need to know of a card. All in bytes."""

    budget_bytes: int  # of device memory, context included
    context_bytes: int
    context_slack_bytes: tuple[int, int] = field(default=(0, 0), kw_only=True)  # how far below and above it may lie
    interval: RelativeInterval
    settings: AllocatorSettings = DEFAULT_SETTINGS
    capacity_bytes: int | None = None  # for segments: the card's memory without the context; None: without limit
    calibration: str | None = None  # a sentence on where the context was measured, if not for the catalogue

    def device_bytes(self, peaks: Peaks) -> int:
        return peaks.reserved + self.context_bytes

    def around(self, device_bytes: float, growth: float = 0.0) -> tuple[int, int]:
        """The interval around a predicted device peak, with what is not known of the context, in bytes."""
        low, high = self.interval.around(device_bytes, growth)
        return max(0, low - self.context_slack_bytes[0]), high + self.context_slack_bytes[1]

    def upper(self, played: Replayed, growth: float = 0.0) -> float:
        """The upper end of the device peak's interval; infinite where the card was full before the end."""
        if played.full is not None:
            return float("inf")
        return self.around(self.device_bytes(played.peak), growth)[1]

    def fits(self, played: Replayed, growth: float = 0.0) -> bool:
        return self.upper(played, growth) <= self.budget_bytes

    @cached_property
    def most_reserved_bytes(self) -> int:
        """The most that an allocator may reserve on this card for a program to fit; below 0 where nothing does."""

        def too_much(reserved: int) -> bool:
            return self.around(reserved + self.context_bytes)[1] > self.budget_bytes

        return bisect_left(range(ANY_BYTES), True, key=too_much) - 1

    def estimate(self, peaks: Peaks, growth: float = 0.0) -> PeakEstimate:
        device = self.device_bytes(peaks)
        basis = self.interval.basis
        if growth:
            basis += f"; widened by {growth:.1%}, for this size lies beyond the ones traced"
        if any(self.context_slack_bytes):
            basis += "; and the context of this card is assumed"
        if self.calibration:
            basis += f"; {self.calibration}"
        interval = self.around(device, growth)
        source = Source.PREDICTED
        return PeakEstimate(peaks.allocated, peaks.reserved, device, interval, source, basis)

    def point(self, batch_size: int, played: Replayed, growth: float = 0.0) -> Point:
        """The device peak at one batch size, for a curve."""
        device = self.device_bytes(played.peak)
        low, high = self.around(device, growth)
        return Point(batch_size, Estimate(device, Source.PREDICTED, low, high, self.interval.basis))

    def replay_program(self, program: Program) -> Replayed:
        """Replay a program on this card, or on as many as it is of: the worst of them."""
        return worst_of(replay_cards(program, program.sizes, self.settings, self.capacity_bytes))

    def replay(self, trace: Trace) -> Replayed:
        """Replay a trace on this card."""
        return self.replay_program(program_of(trace))


@dataclass
class ExtrapolatedPeaks:
    """Peaks at any batch size from a size model, each computed once."""

    model: SizeModel
    card: Card
    _played: dict[int, Replayed] = field(default_factory=dict)
    _too_large: set[int] = field(default_factory=set)  # do not fit; by how much was not worked out

    def at(self, batch_size: int) -> Replayed:
        if batch_size not in self._played:
            self._played[batch_size] = self.model.replay_at(batch_size, self.card.settings, self.card.capacity_bytes)
        return self._played[batch_size]

    def fits(self, batch_size: int) -> bool:
        if batch_size not in self._played and batch_size not in self._too_large:
            card = self.card
            most = card.most_reserved_bytes
            played = self.model.replay_at(batch_size, card.settings, card.capacity_bytes, stop_above=most)
            if played.stopped:
                self._too_large.add(batch_size)
            else:
                self._played[batch_size] = played
        return batch_size in self._played and self.card.fits(self._played[batch_size])

    def largest(self, lower: int, upper: int | None) -> int | None:
        """As `largest_that`, with the more tests the shorter the program."""
        rows = max(1, len(self.model.program.events))
        tests = max(FEWEST_TESTS, min(MOST_TESTS, TESTED_ROWS // rows))
        return largest_that(self.fits, lower, upper, tests)


def largest_that(fits: Callable[[int], bool], lower: int, upper: int | None, tests: int = MOST_TESTS) -> int | None:
    """The largest batch size from `lower` to `upper` that fits, None if not even `lower` does.

    Memory reserved is not monotone in the batch size: a larger batch can fall into better fitting segments. So the edge
    found by bisection is a size that fits whose next one does not; then sizes above it are tested (about `tests` of them:
    the next ones, and some spread up to `REACH` times the edge), and the largest that fits becomes the edge, until none of
    them does. Without `upper` the search goes up by doubling until a size does not fit, and gives up at 2**24.
    """
    if not fits(lower):
        found = next((size for size in _above(lower, upper, tests) if fits(size)), None)
        if found is None:
            return None
        lower = found
    good, bad = lower, None
    step = 2 * lower
    while bad is None:
        step = step if upper is None else min(step, upper)
        if step <= good or step >= ENDLESS:
            return good
        good, bad = (step, None) if fits(step) else (good, step)
        step *= 2
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    while True:
        larger = next((size for size in _above(good, upper, tests) if fits(size)), None)
        if larger is None:
            return good
        good = larger


def _above(edge: int, upper: int | None, tests: int) -> list[int]:
    """Sizes above an edge that may fit all the same, the largest first."""
    parts = tests // 4
    spread = {edge + round(edge * (REACH - 1) * part / parts) for part in range(1, parts + 1)}
    near = set(range(edge + 1, edge + min(tests - parts, max(WINDOW, edge // 10)) + 1))
    return sorted((size for size in near | spread if size > edge and (upper is None or size <= upper)), reverse=True)


def curve_sizes(largest: int | None, lower: int, upper: int | None, rows: int = 0) -> list[int]:
    """Batch sizes for a picture: evenly spread to somewhat beyond the largest that fits, fewer for a program of many rows."""
    end = max(lower + 1, round((largest or lower) * 1.25))
    if upper is not None:
        end = min(end, max(upper, lower))
    points = max(FEWEST_POINTS, min(CURVE_POINTS, DRAWN_ROWS // max(1, rows)))
    count = min(points, end - lower + 1)
    if count <= 1:
        return [lower]
    return sorted({lower + round(i * (end - lower) / (count - 1)) for i in range(count)} | ({largest} if largest else set()))
