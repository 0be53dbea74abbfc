"""What a checkpoint costs: `python -m bench.checkpoint_cost`.

The same state (a model's weights and AdamW's two moments, float32) is saved and loaded by
brimful_train.checkpoints and by torch.save and torch.load, by turns in one process. Both are on the
disk when they come back: torch's file is synced as well. Ours does more: it makes two files,
computes checksums, syncs the folders, renames, and reads every byte for its checksum before it
loads. It prints seconds, MB/s and the ratio of the two, the median of the pairs with the lowest and
highest.
"""

import gc
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch

from bench import harness
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.config import CheckpointConfig

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
    optimizer = {"state": moments, "param_groups": [{"lr": 1e-3}]}
    return {"model": model, "optimizer": optimizer, "step": 5}


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
    config = CheckpointConfig(keep_last=1, keep_best=False)
    checkpoints, file = Checkpoints(folder / "ours", config, print), folder / "torch.pt"
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
    state, rows = state_of(size_bytes), []
    one_round(state, folder, True)  # the first pages and imports
    for number in range(rounds):
        rows.append(one_round(state, folder, number % 2 == 0))
        harness.say(*(f"  {name} {value:.3f}" for name, value in sorted(rows[-1].items())))
    figures: dict[str, Any] = {"bytes": size_bytes, "rows": rows}
    for what in ("save", "load"):
        ours, theirs = ([row[f"{side}{what}_s"] for row in rows] for side in ("", "torch_"))
        figures[f"{what}_s"], figures[f"torch_{what}_s"] = harness.span(ours), harness.span(theirs)
        figures[f"{what}_mb_per_s"] = size_bytes / 1e6 / figures[f"{what}_s"]["median"]
        figures[f"{what}_ratio_to_torch"] = harness.span(
            [our_s / their_s for our_s, their_s in zip(ours, theirs, strict=True)]
        )
    return figures


def main(
    *,
    rounds: int = 7,
    sizes: Annotated[list[str] | None, "names of sizes"] = None,
    folder: Annotated[str | None, "on the disk to be measured (else the temporary one)"] = None,
    out: harness.Out = harness.RESULTS,
) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        figures_of = {
            name: measured(size, rounds, Path(scratch))
            for name, size in harness.choose(SIZES, sizes).items()
        }
    for name, figures in figures_of.items():
        for what in ("save", "load"):
            ratio, time_s = figures[f"{what}_ratio_to_torch"], figures[f"{what}_s"]["median"]
            print(
                f"{name} {what}: {time_s:.3f} s, {figures[f'{what}_mb_per_s']:,.0f} MB/s, "
                f"{ratio['median']:.2f} times torch's ({ratio['low']:.2f} to {ratio['high']:.2f})"
            )
    what = "seconds to save and load a state, synced to the disk, against torch.save and torch.load"
    settings = {"rounds": rounds, "tensors": 3 * TENSORS, "dtype": "float32"}
    result = {**harness.heading(what), "settings": settings, "sizes": figures_of}
    harness.keep("checkpoint_cost", result, out)


if __name__ == "__main__":
    harness.run(main)
