"""Predictions against measurements: image models of timm that others trained on an A100 40 GB and
weighed with nvidia-smi.

    python -m bench.timm_rows <folder with timm_a100_40gb.csv> [--models 60] [--seed 0]

Needs torch, torchvision and timm in one environment, and brimful's src on its path. Each model's
ordinary CUDA script (bench/scripts/timm_train.py) runs on the imaginary card at two small batch
sizes, in this process; the sizes fitted through them, replayed, predict all its rows. Where the
order of allocations differs between the sizes, each row is traced by itself. The measurements hold
a CUDA context that depends on the driver: one constant is fitted, on the models of timm_seen.txt,
whose errors were looked at while the formulas were sought. All other models judge. The whole takes
an hour on two cores; `--models 60` a quarter of that.
"""

import functools
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

from bench import accuracy, harness
from bench.harness import MIB
from bench.traced import traced
from brimful.decide.memory.fit import context_of
from brimful.decide.memory.intervals import ALLOCATOR, parts_of
from brimful.decide.memory.size_model import fit_size_model
from brimful.measure.gpus import find_gpu, loaded_at_once, to_card
from brimful.values import Gpu
from brimful_inside.simulator.program import Program
from brimful_inside.wire import Card

SCRIPT = harness.ROOT / "bench" / "scripts" / "timm_train.py"
CSV = "timm_a100_40gb.csv"
SIZES = (4, 11)  # the batch sizes that are traced, as a search for the largest one takes them
SEEN = Path(__file__).parent / "timm_seen.txt"  # models that cannot judge any more
STEPS = 3  # the second has weights and momentum, the third the segments that it left
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
    batch_size: int
    device_peak_mib: int
    reserved_bytes: int
    low_bytes: int  # the ends of its interval, the context left out
    high_bytes: int
    seconds: float  # of the model's traces and replays, divided by its rows
    own_trace: bool  # traced at its own batch size

    @property
    def pair(self) -> accuracy.Pair:
        return accuracy.Pair(self.device_peak_mib * MIB, self.reserved_bytes)


def card_of_the_rows() -> Gpu:
    """As they show, their machine had a driver that loads all kernels together."""
    return loaded_at_once(find_gpu("a100-40gb"))


def predicted_context() -> int:
    """The context that brimful predicts on that card, in bytes: each of the models has a
    convolution.
    """
    return round(context_of(card_of_the_rows(), uses_cudnn=True).value)


def read_measured(folder: Path, count: int | None, seed: int) -> dict[str, dict[int, int]]:
    """MiB by model and batch size, of `count` models drawn at random (None: all)."""
    measured: dict[str, dict[int, int]] = {}
    for row in harness.read_table(folder / CSV):
        by_size = measured.setdefault(row["model"], {})
        by_size[int(row["batch_size"])] = int(row["device_peak_mib"])
    names = random.Random(seed).sample(sorted(measured), min(count or len(measured), len(measured)))
    return {name: measured[name] for name in names}


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Weights keep whatever they hold: drawing them takes most of a script's time and none of the
    card's memory.
    """
    import timm.layers.weight_init
    import torch

    places = ((torch.Tensor, "normal_"), (torch.Tensor, "uniform_"), (torch.Tensor, "erfinv_"))
    places += (
        (torch.nn.init, "_no_grad_trunc_normal_"),
        (timm.layers.weight_init, "_trunc_normal_"),
    )

    def nothing(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor

    with ExitStack() as stack:
        for owner, name in places:
            stack.enter_context(mock.patch.object(owner, name, nothing))
        yield


def trace(model: str, batch_size: int, card: Card) -> Program:
    """The program of the script's allocations, on a card without limit."""
    with nothing_drawn():
        return traced(
            SCRIPT, ["--model", model, "--batch-size", str(batch_size), "--steps", str(STEPS)], card
        )


def predict(model: str, measured: dict[int, int], take: Callable[[str, int], Program]) -> list[Row]:
    """A prediction for each measured batch size of a model; `take` gives the program at a batch
    size.
    """
    begun = time.perf_counter()
    programs = {size: take(model, size) for size in SIZES}
    fitted = fit_size_model(programs)
    predicted: dict[int, tuple[int, int, int]] = {}
    for batch_size in measured:
        of = fitted or fit_size_model({batch_size: take(model, batch_size)})
        assert of is not None
        replayed = of.replay_at(batch_size)
        peak = replayed.peak.reserved
        parts = parts_of(peak, ALLOCATOR, replayed.spread)
        below, above = (
            sum(ends) for ends in zip(*((p.below_bytes, p.above_bytes) for p in parts), strict=True)
        )
        predicted[batch_size] = peak, peak - below, peak + above
    seconds = (time.perf_counter() - begun) / len(measured)
    return [
        Row(model, size, peak, *predicted[size], round(seconds, 3), fitted is None)
        for size, peak in sorted(measured.items())
    ]


def split(rows: list[Row], examined: frozenset[str]) -> tuple[list[Row], list[Row]]:
    """The rows to fit on, and those of models never looked at, to judge on. All rows twice where
    one side has none.
    """
    fitted, judged = (
        [row for row in rows if row.model in examined],
        [row for row in rows if row.model not in examined],
    )
    return (fitted, judged) if fitted and judged else (rows, rows)


def figures(rows: list[Row], context: int) -> dict[str, Any]:
    """How good the predictions of `rows` are under a given context, in bytes, and the intervals
    that come with them.
    """
    spans = [(row.low_bytes + context, row.high_bytes + context) for row in rows]
    widths = [(row.high_bytes - row.low_bytes) / (row.reserved_bytes + context) for row in rows]
    return {
        "context_bytes": context,
        **accuracy.accuracy([row.pair for row in rows], context),
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
    """The figures of the models never looked at, and of those that were.

    All rows are in them; `sound` are those never looked at, without the models that look broken.
    """
    fitted, judged = split(rows, examined)
    context = accuracy.context_bytes([row.pair for row in fitted])
    odd = odd_models(rows, card_bytes, context)
    sound = [row for row in judged if row.model not in odd]
    return {
        "held_out": figures(judged, context),
        "sound": figures(sound, context) if sound else None,
        "seen": figures(fitted, context),
        "odd": odd,
        "seconds_per_prediction": statistics.median(row.seconds for row in rows),
    }


def print_table(result: dict[str, Any]) -> None:
    columns = {
        "held out": result["held_out"],
        "sound": result["sound"],
        "seen": result["seen"],
    }
    columns = {name: column for name, column in columns.items() if column}
    print("\n".join(accuracy.table(columns)))
    print(f"seconds per prediction  {result['seconds_per_prediction']:>13.2f}")
    for model, reason in result["odd"].items():
        print(f"looks broken: {model}: {reason}")


def main(
    data: Annotated[Path, f"the folder with {CSV}"],
    *,
    models: Annotated[int | None, "so many, drawn at random (default: all)"] = None,
    seed: int = 0,
    out: harness.Out = harness.RESULTS,
) -> None:
    gpu = card_of_the_rows()
    measured, card = read_measured(data, models, seed), to_card(gpu)
    by_model, failed = harness.attempted(
        lambda model: predict(model, measured[model], functools.partial(trace, card=card)),
        list(measured),
    )
    rows = [row for of in by_model.values() for row in of]
    judged = judge(rows, harness.read_names(SEEN), int(gpu.total_bytes.value))
    print_table(judged)
    what = "device peak of timm's models (SGD, fp32), predicted, against nvidia-smi"
    result = {
        **harness.heading(what, "timm"),
        "measured_by": "GPUMemNet (arXiv 2602.17817), one A100 40 GB; versions not known",
        "gpu": gpu.key,
        "seed": seed,
        **judged,
        "failed": failed,
    }
    harness.keep("timm", result, out, of=gpu.key, rows=[asdict(row) for row in rows])


if __name__ == "__main__":
    harness.run(main)
