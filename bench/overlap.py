"""What it costs to reduce gradients after a step is agreed upon: `python -m bench.overlap`.

brimful sums gradients over the ranks once all of them have reported that their part succeeded, so
that out of memory on one costs a step and not the run. DistributedDataParallel sums them while the
backward pass still goes on. Two processes on the CPU (gloo, one thread each) train the same model
by turns: `fit`, with `overlap` off or on, and a hand-written loop with DDP. Shown is the ratio of
wall seconds per step: median and middle 80 %.

What this can say: what the meeting, the buckets and the later reduction cost where communication
and computation share the same cores. What it cannot say: what overlap is worth on cards. There NCCL
runs beside the backward kernels and hides up to the smaller of the two times; on a CPU it takes the
cores that the backward pass would use, so that little can be hidden.
"""

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench import harness
from bench.engine_cost import Case, checked, fit_by_turns, make_data, make_model
from bench.turns import Turns, paired_ratios, spread
from brimful_train.distributed.parallel import OVERLAP_AFTER

RANKS = 2
BATCH = 64  # of a rank
STEPS = 5  # in a block of one side
STEPS_PER_EPOCH = 50
WIDTHS = {"2 MB of gradients": 256, "34 MB of gradients": 1024}
LIMIT_S = 900


def by_hand(case: Case, x: torch.Tensor, y: torch.Tensor) -> Iterator[None]:
    """DistributedDataParallel as its users write it; an update for each `next`. Nothing is agreed
    upon.
    """
    model = DistributedDataParallel(make_model(case))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    of_rank = slice(dist.get_rank(), None, RANKS)
    step = 0
    while True:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))
        for rows in order.split(BATCH * RANKS):
            loss = nn.functional.cross_entropy(model(x[rows[of_rank]]), y[rows[of_rank]])
            loss.backward()
            checked(loss, step)
            step += 1
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield


def measured(width: int, overlap: bool, rounds: int, store: str) -> dict[str, list[float]]:
    """One rank's blocks: wall seconds of a step. The ranks begin each block together, since each
    step makes them meet.
    """
    torch.set_num_threads(1)
    rank, ranks = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    case = Case("", 0, width)
    x, y = make_data(case, BATCH * RANKS * STEPS_PER_EPOCH)
    second = by_hand(case, x, y)
    warm_up = math.ceil(OVERLAP_AFTER / STEPS) + 1 if overlap else 3
    turns = Turns(lambda: next(second), steps=STEPS, warm_up=warm_up, second_warm_up=3)
    steps = (rounds + warm_up) * STEPS + 1
    fit_by_turns(case, make_model(case), BATCH, steps, (x, y), turns, overlap=overlap)
    dist.destroy_process_group()
    return {
        "first": [block / STEPS for block in turns.first_times.wall_s],
        "by_hand": [block / STEPS for block in turns.second_times.wall_s],
    }


def on_two_ranks(width: int, overlap: bool, rounds: int) -> dict[str, list[float]]:
    """Rank 0's blocks."""
    with tempfile.TemporaryDirectory() as folder:
        asked = (width, overlap, rounds, f"{folder}/store")
        words = harness.words_apart("bench.overlap", "measured", *asked)
        ranks = [
            subprocess.Popen(
                words,
                cwd=harness.ROOT,
                env=harness.environment(
                    RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS)
                ),
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
        raise RuntimeError("\n".join(errors[-2000:] for _, errors in output))
    return json.loads(output[0][0])


def summary(name: str, overlap: bool, runs: list[dict[str, list[float]]]) -> dict:
    ratios = [paired_ratios(run["first"], run["by_hand"]) for run in runs]
    return {
        "model": name,
        "overlap": overlap,
        "ratio_to_ddp": spread([ratio for of_run in ratios for ratio in of_run]),
        "ratio_of_each_process_pair": [spread(of_run)["median"] for of_run in ratios],
        "ddp_step_s": spread([value for run in runs for value in run["by_hand"]]),
    }


def main(*, processes: int = 3, rounds: int = 30, out: harness.Out = harness.RESULTS) -> None:
    rows = []
    for name, width in WIDTHS.items():
        for overlap in (False, True):
            runs = [on_two_ranks(width, overlap, rounds) for _ in range(processes)]
            rows.append(summary(name, overlap, runs))
            ratio, step_s = rows[-1]["ratio_to_ddp"], rows[-1]["ddp_step_s"]["median"]
            how = "overlapped" if overlap else "after agreement"
            print(
                f"{name}, reduced {how}: {ratio['median']:.3f} of DDP's ({ratio['p10']:.2f} to "
                f"{ratio['p90']:.2f}), whose step takes {step_s * 1e3:.1f} ms",
                flush=True,
            )
    what = "wall seconds of a step of brimful_train.fit over those of a loop with DDP, by turns"
    settings = {"processes": processes, "rounds": rounds, "threads": 1, "backend": "gloo"}
    settings |= {"steps_per_block": STEPS, "batch_of_a_rank": BATCH, "ranks": RANKS}
    harness.keep("overlap", {**harness.heading(what), "settings": settings, "rows": rows}, out)


if __name__ == "__main__":
    harness.run(main)
