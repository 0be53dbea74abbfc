"""Whether one way to train is better than another: by speed, by memory, and by how soon it comes to
the same loss.

The two run by turns, and each turn gives a ratio: what slows the machine meanwhile slows both.
"""

import math
import statistics
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from brimful.decide.speed.measured import TOLERANCE
from brimful.decide.speed.turns import interval_of
from brimful.units import counted
from brimful.values import Estimate, Quantity, Report, Source, TrialResult

TO_LOSS = "time_to_loss_s"
# Of the samples trained on, the share over which losses are smoothed (assumed): a hundred steps of
# a thousand.
_WINDOW = 0.1
# A loss that falls by less than this, as a share of itself, over the second half of a run: too
# little to compare when it was reached (assumed).
_FLAT = 0.002
# Losses at the start, of which one is so many times the other, are of another kind (a sum and a
# mean, say) or of other data; batches of a few samples scatter by less (assumed).
_SAME_START = 2.0


class Point(NamedTuple):
    """A step of a training, as in `Course`."""

    samples: float
    seconds: float
    loss: float


@dataclass(frozen=True)
class Course:
    """How one run trained, by step: samples trained on so far over all ranks, seconds of training
    so far (0 at the end of the first step, before which the machine warms up), and the loss.
    """

    samples: tuple[float, ...]
    seconds: tuple[float, ...]
    losses: tuple[float, ...]

    def smoothed(self, window: float) -> list[Point]:
        """By step: averages over the `window` samples before it, weighted exponentially. Samples
        and seconds are averaged as the loss is, so that the curve does not lag behind.
        """
        points, weights, before, sums = [], 0.0, 0.0, Point(0.0, 0.0, 0.0)
        for step in map(Point, self.samples, self.seconds, self.losses):
            weight = step.samples - before
            kept = math.exp(-weight / window)
            weights = weights * kept + weight
            sums = Point(
                *(so_far * kept + new * weight for so_far, new in zip(sums, step, strict=True))
            )
            points.append(Point(*(value / weights for value in sums)))
            before = step.samples
        return points

    def error(self, window: float) -> float:
        """Standard error of the smoothed loss at the end of the run, by how its steps scatter."""
        half = len(self.losses) // 2
        apart = [
            loss - point.loss
            for loss, point in zip(self.losses[half:], self.smoothed(window)[half:], strict=True)
        ]
        # an exponential average over w samples has 2 w / b steps of b samples in it
        steps = max(1.0, 2 * window * len(self.samples) / self.samples[-1])
        return statistics.pstdev(apart) / math.sqrt(steps)

    @property
    def diverges_at(self) -> int | None:
        """The first step whose loss is no finite number."""
        return next((n for n, loss in enumerate(self.losses, 1) if not math.isfinite(loss)), None)


@dataclass(frozen=True)
class Learning:
    """What pairs of runs say of the loss."""

    quantities: tuple[Quantity, ...]
    target: float
    at_samples: float
    at_s: float
    unclear: str | None  # why the time to a loss says nothing
    spread: float  # of the logarithm of the time to the loss, of a pair


def course_of(reports: Sequence[Report], weighs: bool) -> Course | None:
    """The course of a run; None where its samples, times or losses are not known. `weighs`: the
    script divides the losses of micro-batches by their number.
    """
    trained = [report for report in reports if report.steps]
    lengths = [len(each) for r in trained for each in (r.losses, r.samples_per_step)]
    steps = min(lengths, default=0)
    if steps < 2:
        return None
    counts = [[report.samples_per_step[step] for report in trained] for step in range(steps)]
    losses = [_loss(trained, step, weighs) for step in range(steps)]
    slowest = max(trained, key=lambda report: sum(report.step_s))
    unmeasured = slowest.warmup_steps
    times = [0.0] * unmeasured + list(slowest.step_s)
    if any(None in of_step for of_step in counts):
        return None
    so_far = accumulate(sum(count or 0 for count in of_step) for of_step in counts)
    known = [
        Point(count, time_s, loss)
        for count, time_s, loss in zip(so_far, accumulate(times), losses, strict=False)
        if loss is not None
    ]
    return Course(*zip(*known, strict=True)) if len(known) > 1 else None


def _loss(reports: Sequence[Report], step: int, weighs: bool) -> float | None:
    """The mean over the ranks; of a script that does not weigh its micro-batches, over them too."""
    losses = []
    for report in reports:
        loss = report.losses[step]
        if loss is not None:
            passes = report.micro_batches_per_step[step : step + 1]
            losses.append(loss / (1 if weighs or not passes else max(1, passes[0])))
    return statistics.fmean(losses) if losses else None


def courses(
    a: Sequence[TrialResult], b: Sequence[TrialResult]
) -> tuple[list[Course | None], list[Course | None]]:
    """The courses of both sides' runs. Whether a script divides the losses of its micro-batches by
    their number cannot be seen: as it begins from the same weights, what makes both begin from the
    nearer loss is taken.
    """

    def of(weighs: bool) -> tuple[list[Course | None], list[Course | None]]:
        sides = ([course_of(run.reports, weighs) for run in side] for side in (a, b))
        first, second = sides
        return first, second

    return min(of(True), of(False), key=lambda sides: abs(math.log(start_ratio(*sides) or 1.0)))


def start_ratio(a: Sequence[Course | None], b: Sequence[Course | None]) -> float | None:
    """The loss that B begins from, as a multiple of A's; None where one is not known."""
    first, second = starts(a, b)
    return second / first if first and second and first > 0 and second > 0 else None


def starts(*sides: Sequence[Course | None]) -> list[float | None]:
    """The mean loss of each side over the first samples, as many as the largest first step has."""
    known = [[course for course in side if course is not None] for side in sides]
    samples = max((course.samples[0] for side in known for course in side), default=0.0)
    return [
        statistics.fmean(
            loss
            for course in side
            for loss in course.losses[: max(1, bisect_right(course.samples, samples))]
        )
        if side
        else None
        for side in known
    ]


def begin_alike(a: Sequence[Course | None], b: Sequence[Course | None]) -> bool:
    ratio = start_ratio(a, b)
    return ratio is None or 1 / _SAME_START <= ratio <= _SAME_START


def learning(pairs: Sequence[tuple[Course, Course]]) -> Learning:
    """The losses at equal samples and at equal time, and the time to the loss that the slower one
    of each pair reached. Each pair is of two runs side by side.
    """
    turns = [_turn(*pair) for pair in pairs]
    expected = [turn.error * math.log(2) / max(turn.fall, turn.error, 1e-12) for turn in turns]
    errors = [turn.error / max(abs(turn.target), 1e-12) for turn in turns]
    logs = [math.log(b / a) for a, b in (turn.to_loss for turn in turns) if a > 0 and b > 0]
    unclear = None
    if any(turn.fall <= max(2 * turn.error, _FLAT * abs(turn.target)) for turn in turns):
        unclear = "the loss did not fall by more than its noise"
    elif not logs:  # it rose first, as without a warm-up
        unclear = "the loss did not come below what it began with"
    return Learning(
        (
            quantity("loss_at_equal_samples", [turn.at_samples for turn in turns], errors),
            quantity("loss_at_equal_time", [turn.at_s for turn in turns], errors),
            *(() if unclear else (quantity(TO_LOSS, [turn.to_loss for turn in turns], expected),)),
        ),
        statistics.median(turn.target for turn in turns),
        statistics.median(turn.samples for turn in turns),
        statistics.median(turn.seconds for turn in turns),
        unclear,
        interval_of(logs, statistics.fmean(expected)).spread if logs else 0.0,
    )


class _Turn(NamedTuple):
    """What one pair of runs shows, each pair of numbers of (A, B)."""

    samples: float  # that both trained on
    seconds: float  # that both trained for
    at_samples: tuple[float, float]  # smoothed losses after these samples
    at_s: tuple[float, float]  # and after these seconds
    target: float  # the loss that the slower one reached
    to_loss: tuple[float, float]  # seconds until it
    error: float  # of the difference of two smoothed losses
    fall: float  # of the smoothed loss over the second half of the time, of the slower to fall


def _turn(a: Course, b: Course) -> _Turn:
    window = _WINDOW * min(a.samples[-1], b.samples[-1])
    curves = a.smoothed(window), b.smoothed(window)
    samples = min(curve[-1].samples for curve in curves)
    seconds = min(curve[-1].seconds for curve in curves)
    target = max(curve[-1].loss for curve in curves)
    (first, second), halves = curves, [curve[-1].seconds / 2 for curve in curves]
    falls = [
        _after(curve, half, 1).loss - curve[-1].loss
        for curve, half in zip(curves, halves, strict=True)
    ]
    return _Turn(
        samples,
        seconds,
        (_after(first, samples, 0).loss, _after(second, samples, 0).loss),
        (_after(first, seconds, 1).loss, _after(second, seconds, 1).loss),
        target,
        (_seconds_to(first, target), _seconds_to(second, target)),
        math.hypot(a.error(window), b.error(window)),
        min(falls),
    )


def _after(curve: Sequence[Point], amount: float, along: int) -> Point:
    """The last point up to that many samples (`along` 0) or seconds (1)."""
    return curve[max(0, bisect_right(curve, amount, key=lambda point: point[along]) - 1)]


def _seconds_to(curve: Sequence[Point], target: float) -> float:
    """Until the smoothed loss is there, between two steps by a straight line."""
    at = next(step for step, point in enumerate(curve) if point.loss <= target)
    before, point = curve[max(0, at - 1)], curve[at]
    share = (before.loss - target) / (before.loss - point.loss) if at else 0.0
    return before.seconds + share * (point.seconds - before.seconds)


def quantity(
    code: str,
    pairs: Sequence[Sequence[float | None]],
    expected: Sequence[float] | None = None,
    source: Source = Source.MEASURED,
) -> Quantity:
    """The medians of both sides over pairs of (A, B), and their ratio. `expected`: the relative
    spread that each pair shows by itself; None: what repeats alone show, and of one pair nothing.
    """
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    sides = [[value for pair in pairs if (value := pair[side]) is not None] for side in (0, 1)]
    middles = [statistics.median(values) if values else None for values in sides]
    logs = [math.log(b / a) for a, b in known if a > 0 and b > 0]
    ratio = None
    if logs:
        pairs_text = counted(len(logs), "pair")
        ratio = Estimate(math.exp(statistics.median(logs)), source, note=pairs_text)
        if expected is not None or len(logs) > 1:
            spread = statistics.fmean(expected) if expected else statistics.stdev(logs)
            interval = interval_of(logs, spread)
            if math.isfinite(interval.low):
                ratio = Estimate(
                    math.exp(interval.middle),
                    source,
                    math.exp(interval.low),
                    math.exp(interval.high),
                    pairs_text,
                )
    return Quantity(code, middles[0], middles[1], ratio)


# --- in words ---


def verdict(
    speed: Quantity | None,
    learned: Learning | None,
    why_not: str,
    basis: str,
    pairs: int,
    whole: bool = False,
) -> tuple[str, str | None]:
    """(one sentence, the side to take or None). `why_not`: why learning is not compared; `whole`:
    the commands came to their own ends."""
    faster = _speed_text(speed)
    if learned is None:
        return f"{faster}; learning was not compared: {why_not}", None
    if learned.unclear:
        return (
            f"{faster}; {learned.unclear} in {basis}, so nothing tells which learns sooner: "
            + ("give the command more epochs" if whole else "let them run longer"),
            None,
        )
    soon = learned.quantities[-1]
    ratio = soon.ratio
    assert ratio is not None  # of at least one pair, else it is unclear
    reaches = f"reaches the same loss in {ratio.value:.3g}x the time"
    if soon.differs and ratio.value >= 1 + TOLERANCE:
        return f"{faster} but {reaches}. Use A", "A"
    if soon.differs and ratio.value <= 1 - TOLERANCE:
        return f"{faster} and {reaches}. Use B", "B"
    return f"{faster}; {_not_apart(ratio, learned.spread, basis, pairs)}", None


def _speed_text(speed: Quantity | None) -> str:
    if speed is None or speed.ratio is None:
        return "B trains"
    may_be_noise = speed.ratio.low is not None and not speed.differs
    if may_be_noise or abs(speed.ratio.value - 1) < TOLERANCE:
        return "B is as fast as A"
    if speed.ratio.value >= 1:
        return f"B is {speed.ratio.value:.3g}x faster"
    return f"B runs at {speed.ratio.value:.3g}x the speed"


def _not_apart(ratio: Estimate, spread: float, basis: str, pairs: int) -> str:
    low, high = ratio.low or ratio.value, ratio.high or ratio.value
    between = f"it reaches the same loss in {low:.3g}x to {high:.3g}x the time"
    if high - low <= 2 * TOLERANCE:
        return f"{between}: no difference that matters, by {basis}"
    wanted = max(abs(math.log(ratio.value)), TOLERANCE)
    runs = 2 * math.ceil((1.96 * spread / wanted) ** 2)
    more = f"; some {runs} would do" if runs > 2 * pairs else ""
    return f"{between}: they cannot be told apart by {basis}{more}"
