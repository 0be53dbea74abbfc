"""Predicted step times against measured ones: timm's own training benchmark on an RTX 3090, and
NVIDIA's on other cards.

    python -m bench.clock <folder with benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv>

The file is in the repository of huggingface/pytorch-image-models (Apache-2.0), folder results/: the
step time of some 800 models, each at the largest batch size that fits, mixed precision, channels
last, SGD. Three constants of the clock are fitted, on the models of clock_seen.txt and on one of
NVIDIA's; models that nobody looked at judge. No GPU is needed, but torch, torchvision and timm are.
"""

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unittest import mock

from bench import accuracy, harness
from bench.timm_rows import nothing_drawn
from bench.traced import imagined, run_script
from brimful.decide.memory.intervals import STEP_TIME, STEP_TIME_GROUPED
from brimful.decide.speed.kernels import KernelModel, ScaledKernels, StepKernels, fit_kernels
from brimful.decide.speed.predicted import rates_of, situation_of
from brimful.measure.gpus import find_gpu, to_card
from brimful_inside.simulator.roofline import (
    DEFAULT,
    Efficiency,
    Kernel,
    Rates,
    kernel_time,
    step_time,
)
from brimful_inside.wire import Card

SCRIPT = Path(__file__).parent / "scripts" / "timm_benchmark.py"
SIZES = (4, 11)  # the batch sizes that are traced
STEPS = 2
SEEN = Path(__file__).with_name("clock_seen.txt")  # models that cannot judge any more
CSV, CARD = "benchmark-train-amp-nhwc-pt112-cu113-rtx3090.csv", "rtx3090"
# Two constants are fitted on the RTX 3090, one on NVIDIA's figures for other cards, of which the
# first model alone fits.
GRID = {"halved": (0.85, 0.9, 0.95, 1.0, 1.05), "direct": (0.05, 0.06, 0.07, 0.08, 0.1)}
OTHER_GRID = {"tensor_cores": (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8)}
FITS_OTHERS = "resnet50"


class Published(NamedTuple):
    """Images per second on one card, from the READMEs of NVIDIA/DeepLearningExamples
    (PyTorch/Classification/ConvNets: resnet50v1.5, resnext101-32x4d, se-resnext101-32x4d,
    efficientnet; "Training performance results"; containers 20.12 to 21.03): the clock's level is
    checked by them. Batch sizes are those of their configs.yml. The models are timm's of the same
    architecture; mixed precision was run with channels last.
    """

    model: str  # timm's name
    card: str
    precision: str  # of the script
    batch_size: int
    images_per_s: float

    @property
    def options(self) -> list[str]:
        first = [] if self.precision == "amp" else ["--channels-first"]
        return ["--precision", self.precision, *first, "--foreach"]


PUBLISHED = tuple(
    Published(model, card, precision, batch_size, speed)
    for model, rows in {
        "resnet50": [
            ("a100-80gb", "amp", 256, 2470),
            ("a100-80gb", "tf32", 256, 938),
            ("v100-16gb", "amp", 256, 1200),
            ("v100-16gb", "fp32", 112, 367),
        ],
        "resnext101_32x4d": [
            ("a100-80gb", "amp", 128, 1211),
            ("a100-80gb", "tf32", 128, 456),
            ("v100-16gb", "amp", 128, 587),
            ("v100-16gb", "fp32", 64, 147),
        ],
        "seresnext101_32x4d": [
            ("a100-80gb", "amp", 128, 855),
            ("a100-80gb", "tf32", 128, 395),
            ("v100-16gb", "amp", 112, 443),
            ("v100-16gb", "fp32", 64, 132),
        ],
        "efficientnet_b0": [
            ("a100-80gb", "amp", 256, 2489),
            ("a100-80gb", "tf32", 256, 1078),
            ("v100-16gb", "amp", 128, 1301),
            ("v100-16gb", "fp32", 64, 655),
        ],
    }.items()
    for card, precision, batch_size, speed in rows
)


@dataclass(frozen=True)
class Row:
    """One measured step and the kernels that it is predicted from."""

    model: str
    batch_size: int
    measured_s: float
    step: StepKernels
    rates: Rates

    def predicted_s(self, efficiency: Efficiency = DEFAULT) -> float:
        times = [kernel_time(kernel, self.rates, efficiency) for kernel in self.step.kernels]
        kernels = [self.step.kernels[i] for i in self.step.order]
        return step_time(kernels, [times[i] for i in self.step.order], efficiency).seconds

    @property
    def situation(self) -> str:
        return situation_of(
            self.step, [kernel_time(kernel, self.rates) for kernel in self.step.kernels]
        )

    def log_ratio(self, efficiency: Efficiency = DEFAULT) -> float:
        """Above 0: the prediction is too slow."""
        return math.log(self.predicted_s(efficiency) / self.measured_s)


def kernels_of(
    model: str, batch_size: int, card: Card, options: Sequence[str] = ()
) -> list[Kernel]:
    """What runs on the card in the script's second step."""
    import torch

    steps: list[list[Kernel]] = []
    flags = harness.flags({"model": model, "batch-size": batch_size, "steps": STEPS})
    with imagined(card) as gpu:

        def step_ends(*args: Any) -> None:  # the script waits for the card once a step
            gpu.cards.step(len(steps) + 1)
            steps.append(gpu.clock.last_step())

        with mock.patch.object(torch.cuda, "synchronize", step_ends), nothing_drawn():
            run_script(SCRIPT, [*flags, *options])
    return steps[-1]


def model_of(model: str, card: Card, options: Sequence[str]) -> KernelModel | ScaledKernels:
    """The kernels at any batch size."""
    kernels = fit_kernels({size: kernels_of(model, size, card, options) for size in SIZES})
    if kernels is None:
        raise ValueError(f"{model} ran nothing on the card")
    return kernels


def row_of(model: str, size: int, measured_s: float, on: str, options: Sequence[str]) -> Row:
    """`on`: the card's key."""
    gpu = find_gpu(on)
    rates = rates_of(gpu)
    assert rates is not None
    kernels = model_of(model, to_card(gpu), options)
    return Row(model, size, measured_s, kernels.at(size), rates)


def read_measured(folder: Path) -> dict[str, dict[str, str]]:
    return {row["model"]: row for row in harness.read_table(folder / CSV)}


def drawn(measured: dict[str, dict[str, str]], others: int, seed: int) -> list[str]:
    """The models looked at, and so many others at random, of those that this timm still has."""
    import timm

    here, examined = set(timm.list_models()), harness.read_names(SEEN)
    known = [name for name in measured if name in here]
    order = random.Random(seed).sample(known, len(known))
    new = [name for name in order if name not in examined]
    return [name for name in order if name in examined] + new[:others]


def row_of_timm(of: dict[str, str]) -> Row:
    """Of a line of timm's."""
    size, seconds = int(of["train_batch_size"]), float(of["train_step_time"]) / 1e3
    return row_of(of["model"], size, seconds, CARD, ["--img-size", of["train_img_size"]])


def fit(rows: list[Row], grid: dict[str, tuple[float, ...]]) -> dict[str, float]:
    """The constants of the grid whose mean absolute log error is least."""

    def error(values: tuple[float, ...]) -> float:
        efficiency = DEFAULT._replace(**dict(zip(grid, values, strict=True)))
        return statistics.mean(abs(row.log_ratio(efficiency)) for row in rows)

    return dict(zip(grid, min(itertools.product(*grid.values()), key=error), strict=True))


def figures(rows: list[Row]) -> dict[str, Any]:
    """Predicted over measured step time, by the constants in force."""
    logs = sorted(row.log_ratio() for row in rows)
    absolute = sorted(abs(log) for log in logs)
    return {
        "models": len(rows),
        "median_ratio": math.exp(statistics.median(logs)),
        "median_error": math.exp(statistics.median(absolute)) - 1,
        "p90_error": math.exp(absolute[int(0.9 * (len(absolute) - 1))]) - 1,
        "worst_error": math.exp(absolute[-1]) - 1,
        "within_25_percent": sum(log <= math.log(1.25) for log in absolute) / len(absolute),
    }


def rows_of_other_cards() -> list[Row]:
    """NVIDIA's figures, in the order of `PUBLISHED`."""
    return [
        row_of(of.model, of.batch_size, of.batch_size / of.images_per_s, of.card, of.options)
        for of in PUBLISHED
    ]


def published_rows(rows: list[Row]) -> list[dict[str, Any]]:
    """Those beside what the clock says."""
    return [
        {
            **published._asdict(),
            "predicted_images_per_s": round(row.batch_size / row.predicted_s(), 1),
            "time_ratio": round(math.exp(row.log_ratio()), 3),
        }
        for published, row in zip(PUBLISHED, rows, strict=True)
    ]


def write_evidence(judged: list[Row], date: str, folder: Path) -> None:
    basis = (
        "timm's training benchmark in mixed precision, channels last, on held-out models; traced "
        f"with torch {version('torch')}, timm {version('timm')}"
    )
    for situation, name in ((STEP_TIME, "clock"), (STEP_TIME_GROUPED, "clock-grouped")):
        errors = [
            math.exp(-row.log_ratio()) - 1 for row in judged if row.situation == situation
        ]  # measured over predicted
        evidence = accuracy.evidence_from(
            errors, situation, date, f"one {find_gpu(CARD).name}", basis
        )
        (folder / f"{name}-{CARD}.json").write_text(
            accuracy.evidence_json(evidence), encoding="utf-8"
        )


def print_table(result: dict[str, Any]) -> None:
    for name, of in {
        "held out": result["held_out"],
        **result["held_out_by_situation"],
        "seen": result["seen"],
    }.items():
        print(f"{name:34}" + "  ".join(f"{key} {value:.3g}" for key, value in of.items()))
    for row in result["other_cards"]:
        print("  ", *(f"{name} {value}" for name, value in row.items()))
    print("fitted:", result["fitted"], "  in force:", result["in_force"])


def main(
    data: Annotated[Path, f"the folder with {CSV}"],
    *,
    models: Annotated[int, "so many that nobody looked at, drawn at random"] = 100,
    seed: int = 0,
    evidence: Annotated[bool, "also write what intervals rest on"] = False,
    out: harness.Out = harness.RESULTS,
) -> None:
    measured, examined = read_measured(data), harness.read_names(SEEN)
    names = drawn(measured, models, seed)
    made, failed = harness.attempted(lambda name: row_of_timm(measured[name]), names)
    rows = list(made.values())
    fitted_on = [row for row in rows if row.model in examined]
    judged = [row for row in rows if row.model not in examined]
    others = rows_of_other_cards()
    fits_others = [
        row
        for published, row in zip(PUBLISHED, others, strict=True)
        if published.model == FITS_OTHERS and published.precision != "fp32"
    ]
    what = "time of a step, predicted from each kernel's arithmetic and bytes, against timm's bench"
    result = {
        **harness.heading(what, "timm"),
        "measured_by": f"R. Wightman, huggingface/pytorch-image-models, results/{CSV}: RTX 3090, "
        "PyTorch 1.12, CUDA 11.3, July 2022; and NVIDIA/DeepLearningExamples "
        "(bench/clock.py)",
        "gpu": CARD,
        "in_force": {name: getattr(DEFAULT, name) for name in (*GRID, *OTHER_GRID)},
        "fitted": {**fit(fitted_on, GRID), **fit(fits_others, OTHER_GRID)},
        "held_out": figures(judged),
        "held_out_by_situation": {
            name: figures([row for row in judged if row.situation == name])
            for name in (STEP_TIME, STEP_TIME_GROUPED)
        },
        "seen": figures(fitted_on),
        "other_cards": published_rows(others),
        "failed": failed,
    }
    print_table(result)
    kept = [
        {
            "model": row.model,
            "batch_size": row.batch_size,
            "measured_s": round(row.measured_s, 5),
            "predicted_s": round(row.predicted_s(), 5),
            "seen": row.model in examined,
        }
        for row in rows
    ]
    harness.keep("clock", result, out, of=CARD, rows=kept)
    if evidence:
        write_evidence(judged, result["date"], harness.EVIDENCE)


if __name__ == "__main__":
    harness.run(main)
