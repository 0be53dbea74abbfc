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

from __future__ import annotations

import argparse
import csv
import datetime
import json
import platform
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import accuracy, peers
from bench.timm_figures import Row, figures, judge, print_table, seen_models, write_evidence
from bench.traced import traced
from brimful.decide.memory.fit import context_of
from brimful.decide.memory.intervals import kind_of
from brimful.decide.memory.size_model import fit_size_model
from brimful.measure.gpus import find_gpu, loaded_at_once, to_card
from brimful_inside.simulator.program import Program
from brimful_inside.wire import Card

HERE = Path(__file__).parent
SCRIPT = HERE / "scripts" / "timm_train.py"
CSV = "timm_a100_40gb.csv"
EVIDENCE = HERE.parent / "src" / "brimful" / "decide" / "evidence"
MIB = 1 << 20
SIZES = (4, 11)  # the batch sizes that are traced, as a search for the largest one takes them
STEPS = 3  # the second has weights and momentum, the third the segments that it left


def read_measured(folder: Path, count: int | None, seed: int) -> dict[str, dict[int, int]]:
    """MiB by model and batch size, of `count` models drawn at random (None: all)."""
    path = folder / CSV
    if not path.is_file():
        sys.exit(f"There is no {path}: give the folder that holds the measured rows.")
    measured: dict[str, dict[int, int]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            measured.setdefault(row["model"], {})[int(row["batch_size"])] = int(
                row["device_peak_mib"]
            )
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
    kept = [getattr(owner, name) for owner, name in places]
    for owner, name in places:
        setattr(owner, name, lambda tensor, *args, **kwargs: tensor)
    try:
        yield
    finally:
        for (owner, name), function in zip(places, kept, strict=True):
            setattr(owner, name, function)


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
        print(f"{number + 1}/{len(measured)}: {model}", file=sys.stderr, flush=True)
    return rows, failed


def compare(rows: list[Row], seen: frozenset[str], models: int, seed: int) -> dict[str, Any]:
    """What the peers say of some models, and brimful's figures on the very rows that judge them;
    printed and returned.
    """
    measured: dict[str, dict[int, int]] = {}
    for row in rows:
        measured.setdefault(row.model, {})[row.batch_size] = row.device_peak_mib
    answers = peers.timm_answers(measured, seen, models, seed=seed)
    judges, fitted = (
        {answer.model for answer in answers if answer.fitted is side} for side in (False, True)
    )
    if not judges or not fitted:
        print("too few models to set others beside")
        return {}
    context = accuracy.context_bytes([row.pair for row in rows if row.model in fitted])
    ours = figures([row for row in rows if row.model in judges], context)
    ours["seconds_per_prediction"] = statistics.median(
        row.seconds for row in rows if row.model in judges
    )
    found = {"brimful": ours, **peers.figures(answers)}
    print(
        f"\nbeside others, each with a constant of its own, on {len(judges)} models never looked "
        "at:"
    )
    print("\n".join(peers.table(found)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help=f"the folder with {CSV}")
    parser.add_argument("--models", type=int, help="so many, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--peers",
        type=int,
        default=40,
        metavar="MODELS",
        help="ask others of so many models (10 minutes for 40)",
    )
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument(
        "--evidence", action="store_true", help=f"also write what intervals rest on, to {EVIDENCE}"
    )
    args = parser.parse_args()

    gpu = loaded_at_once(
        find_gpu("a100-40gb")
    )  # as the rows show: their machine had a driver that loads all kernels together
    rows, failed = predict_all(read_measured(args.data, args.models, args.seed), to_card(gpu))
    today, seen = datetime.date.today(), seen_models()
    result = {
        "bench": "timm_rows",
        "what": "device peak of timm's models trained with SGD in fp32, predicted on an imaginary "
        "card, against nvidia-smi",
        "measured_by": "GPUMemNet (arXiv 2602.17817), one A100 40 GB; versions of PyTorch, cuDNN "
        "and "
        "timm "
        "not known",
        "gpu": gpu.key,
        "date": today.isoformat(),
        "seed": args.seed,
        "versions": {
            **{name: version(name) for name in ("torch", "timm")},
            "python": platform.python_version(),
        },
        **judge(rows, seen, int(gpu.total_bytes.value)),
        "failed": failed,
        "rows": [asdict(row) for row in rows],
    }
    print_table(result)
    result["peers"] = compare(rows, seen, args.peers, args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"timm-{gpu.key}-{today:%Y-%m}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path}")
    if args.evidence:
        in_force = round(
            context_of(gpu, uses_cudnn=True).value
        )  # each of these models has a convolution
        write_evidence(
            rows, in_force, f"one {gpu.name}", today.isoformat(), EVIDENCE, result["odd"]
        )


if __name__ == "__main__":
    main()
