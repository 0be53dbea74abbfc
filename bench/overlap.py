"""What it costs to reduce gradients after a step is agreed upon: `python -m bench.overlap`.

brimful sums gradients over the ranks once all of them have reported that their part succeeded, so
that out of memory on one costs a step and not the run. DistributedDataParallel sums them while the
backward pass still goes on. Two processes on the CPU (gloo, one thread each) train the same model
by turns: `fit`, with `overlap` off or on, and a hand-written loop with DDP. Shown is the ratio of
wall seconds per step: median and middle 80 %.

What this can say: what the meeting, the buckets and the later reduction cost where communication
and computation share the same
cores. What it cannot say: what overlap is worth on cards. There NCCL runs beside the backward
kernels and hides up to the smaller of the two times; on a CPU it takes the cores that the backward
pass would use, so that little can be hidden.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.probe_cost import cpu_name
from bench.turns import Turns, paired_ratios, spread
from brimful_train import (
    Arrays,
    BatchingConfig,
    CheckpointConfig,
    Config,
    OptimizerConfig,
    Task,
    fit,
)
from brimful_train.distributed.parallel import OVERLAP_AFTER

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
RANKS = 2
BATCH = 64  # of a rank
STEPS = 5  # in a block of one side
WIDTHS = {"2 MB of gradients": 256, "34 MB of gradients": 1024}
LIMIT_S = 900


def make_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers = [
        part for _ in range(8) for part in (nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def by_hand(width: int, x: torch.Tensor, y: torch.Tensor) -> Iterator[None]:
    """DistributedDataParallel as its users write it; an update for each `next`. Nothing is agreed
    upon.
    """
    model = DistributedDataParallel(make_model(width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    own = slice(dist.get_rank(), None, RANKS)
    step = 0
    while True:
        for rows in torch.randperm(len(x), generator=torch.Generator().manual_seed(step)).split(
            BATCH * RANKS
        ):
            mine = rows[own]
            loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
            loss.backward()
            value = loss.item()
            if not math.isfinite(value):
                raise ArithmeticError(f"the loss of step {step} is {value}")
            step += 1
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield


def measured(width: int, overlap: bool, rounds: int, store: str) -> dict[str, list[float]]:
    """One rank's blocks: wall seconds of a step. The ranks begin each block together, since each
    step makes them meet.
    """
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    generator = torch.Generator().manual_seed(1)
    samples = BATCH * RANKS * 50
    x, y = (
        torch.randn(samples, width, generator=generator),
        torch.randint(0, 10, (samples,), generator=generator),
    )
    second = by_hand(width, x, y)
    warm_up = math.ceil(OVERLAP_AFTER / STEPS) + 1 if overlap else 3
    total_steps = (rounds + warm_up) * STEPS + 1
    turns = Turns(lambda: next(second), steps=STEPS, warm_up=warm_up, second_warm_up=3)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        turns()
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            out=Path(folder),
            epochs=math.ceil(total_steps / 50) + 1,
            max_steps=total_steps,
            device="cpu",
            overlap=overlap,
            batch=BatchingConfig(micro_batch=BATCH),
            optimizer=OptimizerConfig(),
            checkpoints=CheckpointConfig(every_epochs=None),
        )
        fit(Task("bench", make_model(width), loss, Arrays(x, y)), config)
    figures = {"first": turns.first_times.wall_s, "by_hand": turns.second_times.wall_s}
    dist.destroy_process_group()
    return {name: [block / STEPS for block in blocks] for name, blocks in figures.items()}


def on_two_ranks(name: str, overlap: bool, rounds: int) -> dict[str, list[float]]:
    """Rank 0's blocks."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
            "WORLD_SIZE": str(RANKS),
        }
        argv = [
            sys.executable,
            "-m",
            "bench.overlap",
            "--measure",
            name,
            "--rounds",
            str(rounds),
            "--store",
            f"{folder}/store",
        ]
        argv += ["--overlap"] if overlap else []
        ranks = [
            subprocess.Popen(
                argv,
                cwd=ROOT,
                env=variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            output = [process.communicate(timeout=LIMIT_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
    if any(process.returncode for process in ranks):
        raise RuntimeError("\n".join(words[1][-2000:] for words in output))
    return json.loads(output[0][0])


def summary(name: str, overlap: bool, runs: list[dict[str, list[float]]]) -> dict:
    ratios = [paired_ratios(run["first"], run["by_hand"]) for run in runs]
    return {
        "model": name,
        "overlap": overlap,
        "ratio_to_ddp": spread([ratio for one in ratios for ratio in one]),
        "ratio_of_each_process_pair": [spread(one)["median"] for one in ratios],
        "ddp_step_s": spread([value for run in runs for value in run["by_hand"]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=3, help="pairs of processes")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--no-result", action="store_true", help="print only")
    parser.add_argument("--measure", choices=list(WIDTHS), help=argparse.SUPPRESS)
    parser.add_argument("--overlap", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(
            json.dumps(
                measured(WIDTHS[options.measure], options.overlap, options.rounds, options.store)
            )
        )
        return
    rows = []
    for name in WIDTHS:
        for overlap in (False, True):
            runs = [on_two_ranks(name, overlap, options.rounds) for _ in range(options.processes)]
            rows.append(summary(name, overlap, runs))
            ratio, step_s = rows[-1]["ratio_to_ddp"], rows[-1]["ddp_step_s"]["median"]
            how = "overlapped" if overlap else "after agreement"
            print(
                f"{name}, reduced {how}: {ratio['median']:.3f} of DDP's ({ratio['p10']:.2f} to "
                f"{ratio['p90']:.2f}), "
                f"whose step takes {step_s * 1e3:.1f} ms",
                flush=True,
            )
    result = {
        "what": "wall seconds of a step of brimful_train.fit over those of a hand-written loop "
        "with "
        "DDP, by turns",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "settings": {
            "processes": options.processes,
            "rounds": options.rounds,
            "steps_per_block": STEPS,
            "batch_of_a_rank": BATCH,
            "threads": 1,
            "ranks": RANKS,
            "backend": "gloo",
            "load_average": os.getloadavg(),
        },
        "rows": rows,
    }
    if not options.no_result:
        name = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
        path = RESULTS / f"overlap-{name}-{datetime.date.today():%Y-%m}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(f"kept in {path}")


if __name__ == "__main__":
    main()
