"""What `compare` concludes: from runs side by side, or from two predictions."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from brimful.decide import compare as deciding
from brimful.decide.compare import Course, Learning, quantity
from brimful.decide.loaders_seen import dataset_length
from brimful.decide.speed.turns import BUSY, gain
from brimful.decide.tune.learning_rate import learning_rate_advice
from brimful.units import format_share
from brimful.values import (
    Comparison,
    Diagnostic,
    Estimate,
    Execution,
    Prediction,
    Quantity,
    Setting,
    Side,
    Source,
    TrialResult,
)

NAMES = ("A", "B")
_KEPT_POINTS = 200  # of a curve
_DRIFT = 0.1  # of the speed, between the first run and the last of the same side: worth a word
_BYTES = ("allocated_bytes", "reserved_bytes", "device_bytes")


@dataclass
class Contestant:
    """One side and its runs, in their order."""

    line: str
    settings: dict[str, Setting]
    runs: list[TrialResult] = field(default_factory=list)


Contestants = tuple[Contestant, Contestant]
WHOLE = "the whole training"


# --- runs side by side ---


def of_runs(sides: Contestants, until: str, ended: str | None) -> Comparison:
    """`until`: how long each run might train, in words; `ended`: what cut the comparison short,
    None where nothing did. Whole pairs alone count.
    """
    pairs = min(len(side.runs) for side in sides)
    runs = [side.runs[:pairs] for side in sides]
    of_a, of_b = deciding.courses(*runs)
    together = [(a, b) for a, b in zip(of_a, of_b, strict=True) if a is not None and b is not None]
    why_not = _why_not_compared(runs, len(together) == pairs, of_a, of_b)
    learned = None if why_not else deciding.learning(together)
    reports = [report for side in runs for run in side for report in run.reports]
    whole = bool(reports) and all(report.ended == "script_ended" for report in reports)
    basis, speed = f"{2 * pairs} runs of {WHOLE if whole else until}", _speed(runs)
    sentence, better = deciding.verdict(speed, learned, why_not, basis, pairs, whole)
    warnings = [Diagnostic("partial", f"{ended}: whole pairs alone count", "", "")] * bool(ended)
    return _comparison(
        [_of_side(*side) for side in zip(NAMES, sides, runs, (of_a, of_b), strict=True)],
        (sentence, better),
        [
            speed,
            *(
                quantity(code, [(number(a), number(b)) for a, b in zip(*runs, strict=True)])
                for code, number in _NUMBERS.items()
            ),
            *(learned.quantities if learned else ()),
        ],
        (Source.MEASURED, basis),
        learned,
        warnings + _warnings(runs),
    )


def _peak(name: str) -> Callable[[Execution], float | None]:
    return lambda run: getattr(run.peak, name, None)


_NUMBERS: dict[str, Callable[[TrialResult], float | None]] = {
    "step_s": lambda run: statistics.median(run.step_s) if run.step_s else None,
    "samples_per_step": lambda run: run.samples_per_step,
    **{f"peak_{name}": _peak(name) for name in _BYTES},
    "peak_host_bytes": lambda run: run.host_bytes,
}


def _speed(runs: Sequence[Sequence[TrialResult]]) -> Quantity:
    middles = [_median([run.samples_per_s for run in side]) for side in runs]
    faster = gain(runs[1], runs[0])
    ratio = faster and Estimate(1 + faster.middle, Source.MEASURED, 1 + faster.low, 1 + faster.high)
    return Quantity("samples_per_s", middles[0], middles[1], ratio)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _why_not_compared(
    runs: Sequence[Sequence[TrialResult]],
    whole: bool,
    a: Sequence[Course | None],
    b: Sequence[Course | None],
) -> str:
    """ "": it can be. Else the reason; `whole`: every run has its losses."""
    if not whole:
        return (
            "no loss was seen at each step (backward() starts from no single number, or the "
            "samples of a step are not known)"
        )
    for name, side in zip(NAMES, (a, b), strict=True):
        step = next((c.diverges_at for c in side if c is not None and c.diverges_at), None)
        if step is not None:
            return f"the loss of {name} is no number at step {step:,} (it diverges)"
    lengths = [_median([dataset_length(run) for run in side]) for side in runs]
    if None not in lengths and lengths[0] != lengths[1]:
        return f"A trains on {lengths[0]:,.0f} samples and B on {lengths[1]:,.0f}"
    if not deciding.begin_alike(a, b):
        first = deciding.starts(a, b)
        return (
            f"A begins from a loss of {first[0]:.3g} and B from {first[1]:.3g}, so the two do not "
            "mean the same"
        )
    return ""


def _of_side(
    name: str,
    side: Contestant,
    runs: Sequence[TrialResult],
    courses: Sequence[Course | None],
) -> Side:
    optimizers = [optimizer for report in runs[-1].reports[:1] for optimizer in report.optimizers]
    known = [course for course in courses if course is not None]
    finite = [course for course in known if course.diverges_at is None]
    longest = max(finite, key=lambda course: course.samples[-1], default=None)
    return Side(
        name,
        side.line,
        side.settings,
        runs[-1].samples_per_step,
        tuple(optimizers[0].first_learning_rates) if optimizers else (),
        tuple(optimizers[0].learning_rates) if optimizers else (),
        len(runs),
        _thinned(longest) if longest else (),
    )


def _thinned(course: Course) -> tuple[tuple[float, float, float], ...]:
    points = course.smoothed(course.samples[-1] / 10)
    every = -(-len(points) // _KEPT_POINTS)
    return tuple((p.samples, p.seconds, p.loss) for p in points[every - 1 :: every])


def _warnings(runs: Sequence[Sequence[TrialResult]]) -> list[Diagnostic]:
    warnings = []
    for name, side in zip(NAMES, runs, strict=True):
        rates = [run.samples_per_s for run in side if run.samples_per_s]
        if len(rates) > 1 and abs(rates[-1] / rates[0] - 1) > _DRIFT:
            warnings.append(
                Diagnostic(
                    "drift",
                    f"{name}'s last run has {rates[-1] / rates[0]:.2g}x the speed of its first",
                    "a machine that warms up, or is used by others, changes both by turns, and "
                    "the intervals are wide for it",
                    "compare again on a quiet machine, or with more --pairs",
                )
            )
    share = max((run.others_share or 0.0 for side in runs for run in side), default=0.0)
    if share > BUSY:
        warnings.append(
            Diagnostic(
                "busy",
                f"other processes took up to {format_share(share)} of the cores",
                "speeds are those of a busy machine",
                "",
            )
        )
    if len(runs[0]) == 1:
        warnings.append(
            Diagnostic(
                "one-pair",
                "one run of each shows nothing of the noise from run to run",
                "seeds and machines differ by more than one run shows",
                "compare with --pairs 3",
            )
        )
    return warnings + _of_learning_rates(runs)


def _of_learning_rates(runs: Sequence[Sequence[TrialResult]]) -> list[Diagnostic]:
    """Where the batch sizes differ and the learning rates do not."""
    reports = [side[-1].reports[:1] for side in runs]
    optimizers = [o for side in reports for report in side for o in report.optimizers[:1]]
    if len(optimizers) < 2 or optimizers[0].learning_rates != optimizers[1].learning_rates:
        return []
    before, after = (side[-1].samples_per_step for side in runs)
    rate = next(iter(optimizers[0].learning_rates), None)
    advice = learning_rate_advice(rate, before, after, optimizers[0].name)
    return [advice] if advice is not None else []


# --- two predictions ---


def of_predictions(predictions: Sequence[Prediction], names: Sequence[str]) -> Comparison:
    """Memory, a step and an epoch of both; `names`: their commands."""
    a, b = map(_numbers_of, predictions)
    quantities = [quantity(code, [(a[code], b[code])], source=Source.PREDICTED) for code in a]
    speed = next(q for q in quantities if q.code == "samples_per_s")
    why_not, basis = "nothing was trained", "one prediction of each"
    sentence, better = deciding.verdict(speed, None, why_not, basis, 1)
    sides = [Side(name, line) for name, line in zip(NAMES, names, strict=True)]
    said = (_with_memory(sentence, quantities), better)
    return _comparison(sides, said, quantities, (Source.PREDICTED, "predicted"), None, [])


def _with_memory(sentence: str, quantities: Sequence[Quantity]) -> str:
    memory = next((q for q in quantities if q.code == "peak_device_bytes" and q.ratio), None)
    if memory is None or memory.ratio is None:
        return sentence
    first, _, rest = sentence.partition(";")
    taken = f"takes {memory.ratio.value:.3g}x the device memory"
    return f"{first} and {taken};{rest}" if rest else f"{first} and {taken}"


def _numbers_of(prediction: Prediction) -> dict[str, float | None]:
    peak, speed, epoch = prediction.peak, prediction.speed, prediction.epoch
    return {
        "samples_per_s": speed.samples_per_s.value if speed and speed.samples_per_s else None,
        "step_s": speed.step_s.value if speed else None,
        "epoch_s": epoch.train_s.value if epoch else None,
        **{f"peak_{name}": getattr(peak, name, None) for name in _BYTES},
        "largest_batch_size": prediction.largest_batch_size,
    }


def _comparison(
    sides: Sequence[Side],
    verdict: tuple[str, str | None],
    quantities: Sequence[Quantity],
    source_and_basis: tuple[Source, str],
    learned: Learning | None,
    warnings: Sequence[Diagnostic],
) -> Comparison:
    known = [q for q in quantities if (q.a, q.b) != (None, None)]
    source, basis = source_and_basis
    return Comparison(
        (sides[0], sides[1]),
        *verdict,
        tuple(known),
        source,
        basis,
        learned.target if learned and not learned.unclear else None,
        learned.at_samples if learned else None,
        learned.at_s if learned else None,
        tuple(warnings),
    )
