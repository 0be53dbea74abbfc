"""Predictions against measurements: image models of timm that others trained on an A100 40 GB and
weighed with nvidia-smi.

    python -m bench.timm_rows <folder with timm_a100_40gb.csv> [--models 60] [--seed 0]

Needs torch, torchvision and timm in one environment, and brimful's src on its path. Each model's
ordinary CUDA script (bench/scripts/timm_train.py) runs on the imaginary card at two small batch
sizes, in this process; the sizes fitted through them, replayed, predict all its rows. Where the
order of allocations differs between the sizes, each row is traced by itself. The measurements hold
a CUDA context that depends on the driver: one constant is fitted, on the models of timm_seen.txt,
whose errors were looked at while the formulas were sought. All other models judge; what intervals
rest on are the errors of all. The whole takes an hour on two cores; `--models 60` a quarter of
that.
"""

import random
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

from bench import harness
from bench.timm_figures import Row, judge, print_table, seen_models, write_evidence
from bench.traced import traced
from brimful.decide.memory.fit import context_of
from brimful.decide.memory.intervals import kind_of
from brimful.decide.memory.size_model import fit_size_model
from brimful.measure.gpus import find_gpu, loaded_at_once, to_card
from brimful_inside.simulator.program import Program
from brimful_inside.wire import Card

SCRIPT = harness.ROOT / "bench" / "scripts" / "timm_train.py"
CSV = "timm_a100_40gb.csv"
SIZES = (4, 11)  # the batch sizes that are traced, as a search for the largest one takes them
STEPS = 3  # the second has weights and momentum, the third the segments that it left


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
    reserved: dict[int, int] = {}
    for batch_size in measured:
        of = fitted or fit_size_model({batch_size: take(model, batch_size)})
        assert of is not None
        reserved[batch_size] = of.replay_at(batch_size).peak.reserved
    seconds = (time.perf_counter() - begun) / len(measured)
    kind = kind_of(programs[SIZES[0]])
    return [
        Row(model, kind, size, peak, reserved[size], round(seconds, 3), fitted is None)
        for size, peak in sorted(measured.items())
    ]


def predict_all(
    measured: dict[str, dict[int, int]], card: Card
) -> tuple[list[Row], dict[str, str]]:
    """The rows, and the models that could not be traced with the error's words."""
    rows: list[Row] = []
    failed: dict[str, str] = {}
    for number, (model, peaks) in enumerate(measured.items()):
        try:
            rows += predict(model, peaks, lambda name, size: trace(name, size, card))
        except Exception as error:  # whatever a model does: it is named in the result
            traceback.print_exc()
            failed[model] = f"{type(error).__name__}: {error}"
        harness.say(f"{number + 1}/{len(measured)}: {model}")
    return rows, failed


def main(
    data: Annotated[Path, f"the folder with {CSV}"],
    *,
    models: Annotated[int | None, "so many, drawn at random (default: all)"] = None,
    seed: int = 0,
    evidence: Annotated[bool, "also write what intervals rest on"] = False,
    out: harness.Out = harness.RESULTS,
) -> None:
    # As the rows show: their machine had a driver that loads all kernels together.
    gpu = loaded_at_once(find_gpu("a100-40gb"))
    rows, failed = predict_all(read_measured(data, models, seed), to_card(gpu))
    judged = judge(rows, seen_models(), int(gpu.total_bytes.value))
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
    if evidence:  # each of these models has a convolution
        context, odd = round(context_of(gpu, uses_cudnn=True).value), judged["odd"]
        hardware = f"one {gpu.name}"
        write_evidence(rows, context, hardware, result["date"], harness.EVIDENCE, odd)


if __name__ == "__main__":
    harness.run(main)
