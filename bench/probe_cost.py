"""What the probe costs a training step: `python -m bench.probe_cost`.

The same small training (8 blocks, batches from a DataLoader, AdamW) runs in processes of its own,
by turns without brimful and with the probe in it: as in a whole run, as in one whose steps take two
backward passes, as in an audit, and under `brimful run` itself, which also weighs the process and
reads what it reports, there also with 3 GiB of memory and 8 loader workers. What losses take of
that is measured against a probe that leaves them out. What is compared is
the processor time that the training thread spends on a step, not the wall clock: the probe waits
for nothing, and so the machine need not be quiet. Reported: extra microseconds of a step over the
pairs, and their share of a step of 10 ms.
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import brimful_inside
from bench import harness
from brimful_inside.wire import TrialConfig

BOOTSTRAP = Path(brimful_inside.__file__).resolve().parent / "bootstrap"
STEP_S = 0.010
LIMIT = 0.01  # of a step of 10 ms

SCRIPT = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
steps, passes, gib, workers = map(int, sys.argv[1:])
torch.manual_seed(0); torch.set_num_threads(1)
held = torch.ones(gib << 28)
data = TensorDataset(torch.randn(64 * 32, 64), torch.randint(0, 10, (64 * 32,)))
blocks = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
model = nn.Sequential(*blocks, nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
times, before = [], None
while len(times) < steps:
    for batch, (x, y) in enumerate(DataLoader(data, 32, shuffle=True, num_workers=workers), 1):
        loss = nn.functional.cross_entropy(model(x), y) / passes
        loss.backward()
        if batch % passes:
            continue
        optimizer.step(); optimizer.zero_grad()
        now = time.thread_time()
        if before is not None:
            times.append(now - before)
        before = now
usual = sorted(times[20:])[: len(times[20:]) * 99 // 100]
print(sum(usual) / len(usual))
"""

# Put before the script: the probe reads no losses.
LEAVES_OUT = """
import torch  # with which the probe begins
from brimful_inside.probe.hooks.forward_backward import Losses
Losses.step = Losses.backward = lambda *_: None
"""

UNDER_BRIMFUL = "under brimful run"
LARGE = f"{UNDER_BRIMFUL}, 3 GiB and 8 loader workers"
ACCUMULATING = "run, two backward passes a step"
KINDS = {
    "run": {},
    ACCUMULATING: {},
    "audit": {"audits": True, "keep_out": True},
    UNDER_BRIMFUL: {},
    LARGE: {},
}
RUN = ("-m", "brimful", "run", "--device", "cpu", "--plan", "none", "--")


def step_seconds(
    steps: int,
    passes: int,
    kind: str | None,
    reads: bool = True,
    held: tuple[int, int] = (0, 0),
) -> float:
    """Processor time of a step of so many backward passes: the mean without the highest hundredth,
    as other processes add to some. No probe where `kind` is None. `reads`: whether the probe reads
    losses. `held`: GiB, and loader workers.
    """
    script = SCRIPT if reads else LEAVES_OUT + SCRIPT
    argv = [sys.executable, "-c", script, *map(str, (steps, passes, *held))]
    with tempfile.TemporaryDirectory() as folder:
        variables = harness.environment(folder, PYTHONPATH="")
        if kind in (UNDER_BRIMFUL, LARGE):
            argv, variables = [sys.executable, *RUN, *argv], harness.environment(folder)
        elif kind is not None:
            settings = {"worst_batch": False, "cut": False, "keep_out": False, **KINDS[kind]}
            config = TrialConfig(folder=folder, device="cpu", **settings)
            path = Path(folder, "trial_config.json")
            path.write_text(json.dumps(dataclasses.asdict(config)))
            variables |= {"PYTHONPATH": str(BOOTSTRAP), "BRIMFUL_TRIAL_CONFIG": str(path)}
        done = subprocess.run(
            argv, env=variables, cwd=folder, capture_output=True, text=True, check=True
        )
    return float(done.stdout)


def summary(kind: str, pairs: int, steps: int, of_reading: bool = False) -> dict[str, Any]:
    """Extra microseconds of a step and their share of it: median and range over the pairs.
    `of_reading`: those of reading losses alone.
    """
    passes, held = 2 if kind == ACCUMULATING else 1, (3, 8) if kind == LARGE else (0, 0)
    step_s = partial(step_seconds, steps, passes, held=held)
    plain = partial(step_s, kind, reads=False) if of_reading else partial(step_s, None)
    rows = harness.by_turns({"plain": plain, "probed": partial(step_s, kind)}, pairs)
    extra_s = [row["probed"] - row["plain"] for row in rows]
    return {
        "extra_us": harness.span([seconds * 1e6 for seconds in extra_s]),
        "share_of_step": harness.span([seconds / STEP_S for seconds in extra_s]),
        "plain_step_cpu_s": harness.span([row["plain"] for row in rows])["median"],
        "pairs_cpu_s": [(row["plain"], row["probed"]) for row in rows],
    }


def main(*, pairs: int = 7, steps: int = 600, out: harness.Out = harness.RESULTS) -> int:
    kinds = {kind: summary(kind, pairs, steps) for kind in KINDS}
    for kind in ("run", ACCUMULATING):
        kinds[f"of {kind}, losses"] = summary(kind, pairs, steps, of_reading=True)
    what = "processor time that the probe adds to a training step, and its share of one of 10 ms"
    settings = {"pairs": pairs, "steps": steps, "step_s": STEP_S, "limit": LIMIT}
    for kind, figures in kinds.items():
        extra, share = figures["extra_us"], figures["share_of_step"]["median"]
        over_pairs = f"{extra['low']:.0f} to {extra['high']:.0f} over the pairs"
        print(
            f"{kind}: {extra['median']:.0f} µs a step ({over_pairs}), {share:.2%} of a step of "
            "10 ms"
        )
    result = {**harness.heading(what), "settings": settings, "kinds": kinds}
    harness.keep("probe_cost", result, out)
    return int(any(figures["share_of_step"]["median"] > LIMIT for figures in kinds.values()))


if __name__ == "__main__":
    sys.exit(harness.run(main))
