"""What fits: a program whose replay gets through on a card that has no more memory than the budget,
and the largest size that does. As PyTorch's allocator does, a full card gives its cached memory
back and goes on.

Device memory is what nvidia-smi shows: what PyTorch's allocator has reserved, the CUDA context, and
NCCL's buffers.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil, floor
from types import MappingProxyType

from brimful.decide.memory.intervals import (
    RelativeInterval,
    of_several_ranks,
    parts_of,
    widest_first,
)
from brimful.decide.memory.size_model import SizeModel
from brimful.values import Estimate, Gpu, IntervalPart, PeakEstimate, Point, Source, Verdict
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, AllocatorSettings
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.replay import Peaks, Replayed, replay_cards, worst_of
from brimful_inside.simulator.trace import Trace

# sizes above an edge that are tested one by one, or a tenth of the edge where that is more
WINDOW = 160
REACH = 1.3  # in random programs on small cards, sizes up to 1.28 times a first edge fitted again
FEWEST_TESTS, MOST_TESTS = 128, 600
TESTED_ROWS = 400_000  # all tests together: a second or two
ANY_BYTES = 1 << 62
ENDLESS = 1 << 24  # a batch size that nobody has
FEWEST_POINTS, CURVE_POINTS = 8, 24
DRAWN_ROWS = 120_000  # all points of a curve together: a third of a second

# No formula of NCCL's buffers is documented: a communicator makes them at its first collective, and
# their size depends on channels, links and NCCL's release. These are assumed, from what users of
# four A100 with NVLink measured for an all-reduce. Fewer channels (PCIe) take less, all-to-all
# takes several times as much (github.com/NVIDIA/nccl/issues/1685).
NCCL_OF_TWO, NCCL_OF_MORE = (
    544 << 20,
    688 << 20,
)  # bytes in a group of two cards, and in larger ones
NCCL_LOW, NCCL_HIGH = (
    0.25,
    1.5,
)  # of that: two channels of the 24 that NVLink gets; a release or a link that takes more
# One segment given back and another taken, while the card waits: in PyTorch programs the median of
# cudaMalloc was 65 µs on an A10, 130 µs on an A100 and 1.5 ms on a GH200, that of cudaFree 43 µs on
# the GH200, 0.4 ms on an RTX 4090, 1.1 ms on the A10.
SEGMENT_S, SEGMENT_LOW_S, SEGMENT_HIGH_S = 0.6e-3, 0.15e-3, 2.5e-3
_SEGMENT_SOURCE = "cudaMalloc and cudaFree as traced on four cards, github.com/ingero-io/ingero"
_NCCL_SOURCE = "github.com/NVIDIA/nccl/issues/964, four A100"


def context_of(
    gpu: Gpu,
    uses_cudnn: bool,
    communicators: Sequence[int] = (),
    strays: Sequence[int] = (),
) -> Estimate:
    """Bytes that nvidia-smi shows beside PyTorch's memory: the CUDA context, cuDNN's where a
    convolution runs, NCCL's buffers for `communicators` of so many ranks each, and so many bytes of
    other ranks, each with a context of its own. No interval where all was measured on this very
    card."""
    base, nccl = gpu.context_bytes, nccl_bytes(communicators)
    if uses_cudnn and gpu.cudnn_bytes is not None:
        base = _together(base, gpu.cudnn_bytes, "cuDNN: ")
    if nccl:
        base = replace(base, note=base.note or "the CUDA context")
        note = f"with NCCL's buffers, assumed ({_NCCL_SOURCE})"
        ends = NCCL_LOW * nccl, NCCL_HIGH * nccl
        base = _together(base, Estimate(nccl, Source.ASSUMED, *ends, note))
    for nbytes in strays:
        other = gpu.context_bytes.with_all(lambda context, more=nbytes: context + more)
        base = _together(base, other, "another rank's: ")
    return base


def nccl_bytes(communicators: Sequence[int]) -> int:
    return sum(NCCL_OF_TWO if ranks == 2 else NCCL_OF_MORE for ranks in communicators if ranks > 1)


def giving_back_s(replayed: Replayed) -> Estimate | None:
    """Seconds of a step in which the host frees cached segments of a full card and takes others;
    None without such. What it takes to unmap and map parts of expandable segments is not known."""
    if not replayed.segments_freed:
        return None
    segments = replayed.segments_freed / max(1, replayed.steps)
    return Estimate(
        SEGMENT_S, Source.ASSUMED, SEGMENT_LOW_S, SEGMENT_HIGH_S, _SEGMENT_SOURCE
    ).with_all(lambda s: s * segments)


def _together(base: Estimate, more: Estimate, name: str = "") -> Estimate:
    """Both parts of a context, with the ends of their intervals added; measured where both are.
    `name`: of the second one, in the note."""
    source = Source.MEASURED if base.source is more.source is Source.MEASURED else Source.ASSUMED
    (low, high), (least, most) = (
        (
            part.value if part.low is None else part.low,
            part.value if part.high is None else part.high,
        )
        for part in (base, more)
    )
    ends = (None, None) if source is Source.MEASURED else (low + least, high + most)
    return Estimate(
        base.value + more.value,
        source,
        *ends,
        f"{base.note}; {name}{more.note}" if base.note else more.note,
    )


def slack_of(context: Estimate) -> tuple[int, int]:
    """How far below and above its value the context may lie, in bytes."""
    below = context.value - context.low if context.low is not None else 0
    above = context.high - context.value if context.high is not None else 0
    return max(0, int(below)), max(0, int(above))


Spread = Mapping[str, tuple[int, int]]
NOTHING: Spread = MappingProxyType({})

#: The replay of a program on cards with so many bytes for segments (None: without limit).
Replayer = Callable[[int | None], Replayed]


@dataclass(frozen=True)
class Card:
    """What predictions of device peaks need to know of a card. All in bytes."""

    budget_bytes: int  # of device memory, context included
    context_bytes: int
    context_slack_bytes: tuple[int, int] = field(
        default=(0, 0), kw_only=True
    )  # how far below and above it may lie
    interval: RelativeInterval  # of what PyTorch's allocator reserves
    settings: AllocatorSettings = DEFAULT_SETTINGS
    # for segments, to which PyTorch is limited: the card's memory, or the budget where that is
    # less, without the context; None: without limit
    capacity_bytes: int | None = None
    # a sentence on where the context was measured, if not for the catalogue
    calibration: str | None = None

    def among(self, ranks: int) -> "Card":
        """The same card as one of so many that train together, with NCCL's buffers and the doubt
        about several ranks.
        """
        nccl, (below, above) = nccl_bytes([ranks]), self.context_slack_bytes
        return replace(
            self,
            interval=of_several_ranks(self.interval) if ranks > 1 else self.interval,
            context_bytes=self.context_bytes + nccl,
            context_slack_bytes=(
                below + int((1 - NCCL_LOW) * nccl),
                above + int((NCCL_HIGH - 1) * nccl),
            ),
            capacity_bytes=None
            if self.capacity_bytes is None
            else max(0, self.capacity_bytes - nccl),
        )

    def device_bytes(self, peaks: Peaks) -> int:
        return peaks.reserved + self.context_bytes

    def parts(self, reserved_bytes: float, spread: Spread = NOTHING) -> tuple[IntervalPart, ...]:
        """What is uncertain of a device peak with so much memory of PyTorch's, the largest first.
        `spread`: as in `Replayed`."""
        below, above = self.context_slack_bytes
        why = self.calibration or "assumed for a card of this architecture and size"
        context = IntervalPart("CUDA context", below, above, why)
        return widest_first([context, *parts_of(reserved_bytes, self.interval, spread)])

    def around(
        self, device_bytes: float, growth: float = 0.0, spread: Spread = NOTHING
    ) -> tuple[int, int]:
        """The interval around a predicted device peak, in bytes: the sum of its parts; `growth`
        widens both ends, as a share (extrapolation)."""
        parts = self.parts(max(0.0, device_bytes - self.context_bytes), spread)
        low = device_bytes * max(0.0, 1 - growth) - sum(part.below_bytes for part in parts)
        high = device_bytes * (1 + growth) + sum(part.above_bytes for part in parts)
        return max(0, floor(low)), ceil(high)

    def upper(self, replayed: Replayed) -> float:
        """The upper end of the device peak's interval; infinite where the card was full before the
        end.
        """
        if replayed.full is not None:
            return float("inf")
        return self.around(self.device_bytes(replayed.peak), 0.0, replayed.spread)[1]

    def upper_of(self, pytorch_bytes: int) -> int:
        """The upper end of the interval of a device peak with so much memory of PyTorch's."""
        return self.around(pytorch_bytes + self.context_bytes)[1]

    @cached_property
    def sure_bytes(self) -> int:
        """For segments within the budget if all that is uncertain turns out large; below 0 where
        nothing is left.
        """
        return self._room(1)

    @cached_property
    def hoped_bytes(self) -> int:
        """For segments within the budget if all that is uncertain turns out small."""
        return self._room(0)

    def _room(self, end: int) -> int:
        def too_much(reserved: int) -> bool:
            return self.around(reserved + self.context_bytes)[end] > self.budget_bytes

        return bisect_left(range(ANY_BYTES), True, key=too_much) - 1

    def fits(self, replayer: Replayer) -> bool:
        """Under all assumptions, and in the most room that it may have as in the least: a training
        that cuts its cache to pieces may get through in less room and not in more."""
        if self.sure_bytes < 0:
            return False
        rooms = {self.sure_bytes, max(self.sure_bytes, self.capacity_bytes or 0)}
        replays = map(replayer, sorted(rooms))
        return all(replayed.full is None and not replayed.may_be_full for replayed in replays)

    def verdict(self, replayer: Replayer) -> Verdict:
        if self.fits(replayer):
            return Verdict.FITS
        may_fit = self.hoped_bytes >= 0 and replayer(self.hoped_bytes).full is None
        return Verdict.TIGHT if may_fit else Verdict.DOES_NOT_FIT

    def peak(self, replayer: Replayer) -> PeakEstimate:
        """Of the device, as this card shows it (`shown`)."""
        shown = self.shown(replayer)
        return self.estimate(shown.peak, self.fits(replayer), shown.spread)

    def estimate(self, peaks: Peaks, fits: bool = False, spread: Spread = NOTHING) -> PeakEstimate:
        """With the interval of this card's device peak."""
        device = self.device_bytes(peaks)
        ends, parts = self.around(device, 0.0, spread), self.parts(peaks.reserved, spread)
        peak = PeakEstimate(peaks.allocated, peaks.reserved, device, ends, Source.PREDICTED, parts)
        return self.that_fits(peak) if fits else peak

    def that_fits(self, peak: PeakEstimate) -> PeakEstimate:
        """What fits runs on a card with less memory, and none shows more than it has."""
        if self.capacity_bytes is None:
            return peak
        low, high = peak.device_interval_bytes
        most = max(peak.device_bytes, self.capacity_bytes + self.context_bytes)
        return replace(peak, device_interval_bytes=(low, min(high, most)))

    def point(self, batch_size: int, replayed: Replayed, growth: float = 0.0) -> Point:
        """The device peak at one batch size, for a curve."""
        device = self.device_bytes(replayed.peak)
        low, high = self.around(device, growth, replayed.spread)
        return Point(batch_size, Estimate(device, Source.PREDICTED, low, high))

    def replay(
        self, traced: Trace | Program, capacity_bytes: int | None, assumes: bool = True
    ) -> Replayed:
        """Replay on a card with so many bytes for segments, or on as many cards as a program is of:
        the worst of them. `assumes`: under other assumptions as well.
        """
        program = traced if isinstance(traced, Program) else program_of(traced)
        return worst_of(
            replay_cards(program, program.sizes, self.settings, capacity_bytes, assumes)
        )

    def shown(self, replayer: Replayer) -> Replayed:
        """What this card shows; where the program runs out of memory on it, what a card without
        limit would.
        """
        replayed = replayer(self.capacity_bytes)
        return replayed if replayed.full is None else replayer(None)


@dataclass
class ExtrapolatedPeaks:
    """Peaks at any batch size from a size model, each computed once."""

    model: SizeModel
    card: Card
    _fits: dict[int, bool] = field(default_factory=dict)

    def at(self, batch_size: int) -> Replayed:
        return self.card.shown(partial(self.model.replay_at, batch_size, self.card.settings))

    def fits(self, batch_size: int) -> bool:
        if batch_size not in self._fits:
            replayer = partial(self.model.replay_at, batch_size, self.card.settings)
            may_fit = self.model.least_bytes_at(batch_size) <= self.card.sure_bytes
            self._fits[batch_size] = may_fit and self.card.fits(replayer)
        return self._fits[batch_size]

    def largest(self, lower: int, upper: int | None) -> int | None:
        """As `largest_that`, with the more tests the shorter the program.

        Where it would test every size within reach, they are tested from above, from the first
        whose live bytes have room: one replay to the end, where a bisection takes several.
        """
        rows = max(1, len(self.model.program.events))
        tests = max(FEWEST_TESTS, min(MOST_TESTS, TESTED_ROWS // rows))
        last = self._last_with_room(lower, upper)
        first = max(lower, ceil(last / REACH))
        within_reach = range(last, first - 1, -1) if last - first <= _near(first, tests) else ()
        largest = next((size for size in within_reach if self.fits(size)), None)
        return largest if largest is not None else largest_that(self.fits, lower, upper, tests)

    def _last_with_room(self, lower: int, upper: int | None) -> int:
        """The largest size from `lower` on whose live bytes do not fill the card."""
        end = ENDLESS if upper is None else upper

        def is_too_much(size: int) -> bool:
            return self.model.least_bytes_at(size) > self.card.sure_bytes

        bound = 2 * lower
        while bound < end and not is_too_much(bound):
            bound *= 2
        return bisect_left(range(min(bound, end) + 1), True, lower, key=is_too_much) - 1


def largest_that(
    fits: Callable[[int], bool], lower: int, upper: int | None, tests: int = MOST_TESTS
) -> int | None:
    """The largest batch size from `lower` to `upper` that fits, None if not even `lower` does.

    Memory reserved is not monotone in the batch size: a larger batch can fall into better fitting
    segments. So bisection finds a size that fits whose next one does not; then about `tests` sizes
    above it follow (the next ones, and some up to `REACH` times as large), from the largest that
    fits anew. Without `upper` it doubles until a size does not fit, up to 2**24.
    """
    if not fits(lower):
        lower = next((size for size in _above(lower, upper, tests) if fits(size)), 0)
    if not lower:
        return None
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
    while larger := next((size for size in _above(good, upper, tests) if fits(size)), None):
        good = larger
    return good


def _above(edge: int, upper: int | None, tests: int) -> list[int]:
    """Sizes above an edge that may fit all the same, the largest first."""
    parts = tests // 4
    spread = {edge + round(edge * (REACH - 1) * part / parts) for part in range(1, parts + 1)}
    near = set(range(edge + 1, edge + _near(edge, tests) + 1))
    return sorted(
        (size for size in near | spread if size > edge and (upper is None or size <= upper)),
        reverse=True,
    )


def _near(edge: int, tests: int) -> int:
    """How many sizes above an edge are tested one by one."""
    return min(tests - tests // 4, max(WINDOW, edge // 10))


def curve_sizes(largest: int | None, lower: int, upper: int | None, rows: int = 0) -> list[int]:
    """Batch sizes for a picture: evenly spread to somewhat beyond the largest that fits, fewer for
    a program of many rows.
    """
    end = max(lower + 1, round((largest or lower) * 1.25))
    if upper is not None:
        end = min(end, max(upper, lower))
    points = max(FEWEST_POINTS, min(CURVE_POINTS, DRAWN_ROWS // max(1, rows)))
    count = min(points, end - lower + 1)
    if count <= 1:
        return [lower]
    return sorted(
        {lower + round(i * (end - lower) / (count - 1)) for i in range(count)}
        | ({largest} if largest else set())
    )
