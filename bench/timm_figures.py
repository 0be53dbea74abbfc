"""How good predictions of timm's measured rows are: figures, rows that look broken, and the
evidence that intervals rest on.
"""

import itertools
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import accuracy, harness
from bench.harness import MIB
from brimful.decide.memory.intervals import interval_for

SEEN = Path(__file__).parent / "timm_seen.txt"
# Weights, gradients, momentum and a copy of gradients, of 800 million parameters: no model of the
# table has so many.
WITHOUT_SAMPLES_MIB = 12_000
# Of the peak; a network whose weights outweigh its activations shows little growth at first, and
# that is sound
VISIBLE = 0.05
JUMP = 3.0  # times as much memory a sample as between the two sizes before


@dataclass(frozen=True)
class Row:
    """One measured run and its prediction."""

    model: str
    kind: str  # of network, as intervals go by it
    batch_size: int
    device_peak_mib: int
    reserved_bytes: int
    seconds: float  # of the model's traces and replays, divided by its rows
    own_trace: bool  # traced at its own batch size

    @property
    def pair(self) -> accuracy.Pair:
        return accuracy.Pair(self.device_peak_mib * MIB, self.reserved_bytes)


def seen_models() -> frozenset[str]:
    """The models that cannot judge any more."""
    return harness.read_names(SEEN)


def split(rows: list[Row], examined: frozenset[str]) -> tuple[list[Row], list[Row]]:
    """The rows to fit on, and those of models never looked at, to judge on. All rows twice where
    one side has none.
    """
    fitted, judged = (
        [row for row in rows if row.model in examined],
        [row for row in rows if row.model not in examined],
    )
    return (fitted, judged) if fitted and judged else (rows, rows)


def slope_errors(rows: list[Row]) -> list[float]:
    """Of each model: MiB per added sample from its smallest to its largest batch size, predicted
    against measured.
    """
    errors = []
    for model in sorted({row.model for row in rows}):
        of = sorted((row for row in rows if row.model == model), key=lambda row: row.batch_size)
        grown = of[-1].device_peak_mib - of[0].device_peak_mib
        if grown > 0:
            errors.append((of[-1].reserved_bytes - of[0].reserved_bytes) / MIB / grown - 1)
    return errors


def figures(rows: list[Row], context: int) -> dict[str, Any]:
    """How good the predictions of `rows` are under a given context, in bytes, and the intervals
    that come with them.
    """
    slopes = [abs(error) for error in slope_errors(rows)]
    predictions = [row.reserved_bytes + context for row in rows]
    spans = [
        interval_for(row.kind).around(predicted)
        for row, predicted in zip(rows, predictions, strict=True)
    ]
    widths = [
        (high - low) / predicted for (low, high), predicted in zip(spans, predictions, strict=True)
    ]
    return {
        "context_bytes": context,
        **accuracy.accuracy([row.pair for row in rows], context),
        "slope_median_absolute": statistics.median(slopes) if slopes else None,
        "share_within_interval": accuracy.coverage(
            spans, [row.pair.measured_device_bytes for row in rows]
        ),
        "interval_median_width": statistics.median(widths),
    }


def odd_models(rows: list[Row], card_bytes: int, context: int) -> dict[str, str]:
    """The models whose measured rows look broken, and why, by rules that know no error.

    Memory grows with the batch as no training's does, memory is there without samples that no
    weights account for, or the card is too small for what was measured on it (the run then ended
    out of memory, and its last reading is in the table).
    """
    odd: dict[str, str] = {}
    for model in sorted({row.model for row in rows}):
        of = sorted((row for row in rows if row.model == model), key=lambda row: row.batch_size)
        points = [(row.batch_size, row.device_peak_mib) for row in of]
        if any(row.reserved_bytes + context > card_bytes for row in of):
            odd[model] = "predicted to need more than the card has at a size that was measured"
        elif reason := _odd_growth(points):
            odd[model] = reason
    return odd


def _odd_growth(points: list[tuple[int, int]]) -> str | None:
    """What is wrong with a model's (batch size, MiB), in ascending order."""
    slopes = [(m2 - m1) / (b2 - b1) for (b1, m1), (b2, m2) in itertools.pairwise(points)]
    if slopes:
        at_none = points[0][1] - points[0][0] * slopes[0]
        if at_none > WITHOUT_SAMPLES_MIB:
            return (
                f"{at_none:.0f} MiB without any sample, by a straight line through the two "
                "smallest sizes"
            )
    for number, (first, second) in enumerate(itertools.pairwise(slopes)):
        (b1, _), (b2, m2), (b3, _) = points[number : number + 3]
        if first * (b2 - b1) > VISIBLE * m2 and second > JUMP * first:
            return f"{first:.0f} MiB a sample from {b1} to {b2}, {second:.0f} from {b2} to {b3}"
    return None


def judge(rows: list[Row], examined: frozenset[str], card_bytes: int) -> dict[str, Any]:
    """The figures of the models never looked at, of those that were, and of each kind of network
    among the former.

    All rows are in them; `sound` are those never looked at, without the models that look broken.
    """
    fitted, judged = split(rows, examined)
    context = accuracy.context_bytes([row.pair for row in fitted])
    kinds = sorted({row.kind for row in judged})
    odd = odd_models(rows, card_bytes, context)
    sound = [row for row in judged if row.model not in odd]
    return {
        "held_out": figures(judged, context),
        "sound": figures(sound, context) if sound else None,
        "seen": figures(fitted, context),
        "by_kind": {
            kind: figures([row for row in judged if row.kind == kind], context) for kind in kinds
        },
        "odd": odd,
        "worst": worst(judged, context),
        "seconds_per_prediction": statistics.median(row.seconds for row in rows),
    }


def worst(rows: list[Row], context: int, count: int = 20) -> list[dict[str, Any]]:
    """Of the models that err most, the row that errs most; errors as (predicted - measured) /
    measured.
    """
    errors = dict(
        zip(rows, accuracy.signed_errors([row.pair for row in rows], context), strict=True)
    )
    by_model: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: -abs(errors[row])):
        by_model.setdefault(row.model, row)
    first = list(by_model.values())[:count]
    return [
        {"model": r.model, "batch_size": r.batch_size, "mib": r.device_peak_mib, "error": errors[r]}
        for r in first
    ]


def write_evidence(
    rows: list[Row], context: int, hardware: str, date: str, folder: Path, odd: Collection[str] = ()
) -> None:
    """The errors of all models but the `odd` ones, under the context (bytes) that brimful predicts
    with, by kind of network.
    """
    rows = [row for row in rows if row.model not in odd]
    basis = (
        "timm's models with SGD in fp32, measured by GPUMemNet (arXiv 2602.17817), one constant "
        "of the workspace model "
        f"and the context fitted to them; traced with torch {version('torch')}, timm "
        f"{version('timm')}"
    )
    for kind in sorted({row.kind for row in rows}):
        of = [row for row in rows if row.kind == kind]
        errors = accuracy.relative_to_predicted([row.pair for row in of], context)
        try:
            evidence = accuracy.evidence_from(
                errors, kind, date, hardware, basis, [row.model for row in of]
            )
        except ValueError as error:
            print(f"{kind}: {error}")
            continue
        (folder / f"{kind.replace(' ', '-')}-a100-40gb.json").write_text(
            accuracy.evidence_json(evidence), encoding="utf-8"
        )
        print(f"{kind}: {len(of)} rows, {evidence.low_error:+.1%} to {evidence.high_error:+.1%}")


def print_table(result: dict[str, Any]) -> None:
    columns = {
        "held out": result["held_out"],
        "sound": result["sound"],
        "seen": result["seen"],
        **result["by_kind"],
    }
    columns = {name: column for name, column in columns.items() if column}
    print("\n".join(accuracy.table(columns)))
    print(f"seconds per prediction  {result['seconds_per_prediction']:>13.2f}")
    for model, reason in result["odd"].items():
        print(f"looks broken: {model}: {reason}")
    for line in result["worst"]:
        print(
            f"  {line['model']:40}{line['batch_size']:>5}{line['mib']:>8} MiB {line['error']:+.1%}"
        )
