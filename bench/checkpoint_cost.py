"""What a checkpoint costs: `python -m bench.checkpoint_cost`.

The same state (a model's weights and AdamW's two moments, float32) is saved and loaded by
brimful_train.checkpoints and by torch.save and torch.load, by turns in one process. Both are on the
disk when they come back: torch's file is synced as well.
Ours does more: it makes two files, computes checksums, syncs the folders, renames, and reads every
byte for its checksum before it loads. It prints seconds, MB/s and the ratio of the two, the median
of the pairs with the lowest and highest.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.probe_cost import cpu_name
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.config import CheckpointConfig

RESULTS = Path(__file__).parent / "results"
SIZES = {"76 MB": 76_000_000, "1 GiB": 1 << 30}
TENSORS = 60  # in a third of the state; assumed: a model of some 20 layers


def state_of(size_bytes: int) -> dict[str, Any]:
    """A third is the model's, two thirds the optimizer's."""
    length = size_bytes // (4 * 3 * TENSORS)
    generator = torch.Generator().manual_seed(0)

    def weights() -> torch.Tensor:
        return torch.rand(length, generator=generator)

    model = {f"layers.{number}.weight": weights() for number in range(TENSORS)}
    moments = {
        number: {"step": torch.tensor(5.0), "exp_avg": weights(), "exp_avg_sq": weights()}
        for number in range(TENSORS)
    }
    return {
        "model": model,
        "optimizer": {"state": moments, "param_groups": [{"lr": 1e-3}]},
        "step": 5,
    }


def seconds(work: Callable[[], Any]) -> float:
    """With what was written before on the disk, so that no one pays for another."""
    gc.collect()
    os.sync()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def save_by_torch(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def one_round(state: dict[str, Any], folder: Path, ours_first: bool) -> dict[str, float]:
    checkpoints = Checkpoints(
        folder / "ours", CheckpointConfig(keep_last=1, keep_best=False), print
    )
    file = folder / "torch.pt"
    file.unlink(missing_ok=True)
    works = {
        "save_s": lambda: checkpoints.save(state, step=1, score=None),
        "torch_save_s": lambda: save_by_torch(state, file),
        "load_s": checkpoints.newest,
        "torch_load_s": lambda: torch.load(file, weights_only=True),
    }
    names = list(works) if ours_first else ["torch_save_s", "save_s", "torch_load_s", "load_s"]
    return {name: seconds(works[name]) for name in names}


def measured(size_bytes: int, rounds: int, folder: Path) -> dict[str, Any]:
    state = state_of(size_bytes)
    rows = []
    one_round(state, folder, True)  # the first pages and imports
    for number in range(rounds):
        rows.append(one_round(state, folder, number % 2 == 0))
        print(
            "  " + "  ".join(f"{name} {value:.3f}" for name, value in sorted(rows[-1].items())),
            file=sys.stderr,
        )
    figures: dict[str, Any] = {"bytes": size_bytes, "rows": rows}
    for what in ("save", "load"):
        figures[f"{what}_s"] = _spread([row[f"{what}_s"] for row in rows])
        figures[f"torch_{what}_s"] = _spread([row[f"torch_{what}_s"] for row in rows])
        figures[f"{what}_mb_per_s"] = size_bytes / 1e6 / figures[f"{what}_s"]["median"]
        figures[f"{what}_ratio_to_torch"] = _spread(
            [row[f"{what}_s"] / row[f"torch_{what}_s"] for row in rows]
        )
    return figures


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES), default=list(SIZES))
    parser.add_argument(
        "--folder", help="on the disk to be measured (default: the temporary folder)"
    )
    parser.add_argument("--no-result", action="store_true", help="print only")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        sizes = {name: measured(SIZES[name], args.rounds, Path(folder)) for name in args.sizes}
    result = {
        "what": "seconds to save and load a state, on the disk when done, against torch.save with "
        "fsync and torch.load",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "settings": {"rounds": args.rounds, "tensors": 3 * TENSORS, "dtype": "float32"},
        "sizes": sizes,
    }
    for name, figures in sizes.items():
        for what in ("save", "load"):
            ratio, time_s = figures[f"{what}_ratio_to_torch"], figures[f"{what}_s"]["median"]
            print(
                f"{name} {what}: {time_s:.3f} s, {figures[f'{what}_mb_per_s']:,.0f} MB/s, "
                f"{ratio['median']:.2f} times torch's ({ratio['low']:.2f} to {ratio['high']:.2f})"
            )
    if not args.no_result:
        name = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
        path = RESULTS / f"checkpoint_cost-{name}-{datetime.date.today():%Y-%m}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"kept in {path}")


if __name__ == "__main__":
    main()
