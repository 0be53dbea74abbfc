"""What the probe costs a training step: `python -m bench.probe_cost`.

The same small training (8 blocks, batches from a DataLoader, AdamW) runs in processes of its own,
by turns without brimful and
with the probe in it: as in a whole run, as in an audit, and under `brimful run` itself, which also
weighs the process and reads what it reports. What is compared is the processor time that the
training thread spends on a step, not the wall clock: the probe waits for nothing, and so the
machine need not be quiet. Reported: extra microseconds of a step over the pairs, and their share of
a step of 10 ms.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import brimful_inside
from brimful_inside.wire import TrialConfig

RESULTS = Path(__file__).parent / "results"
BOOTSTRAP = Path(brimful_inside.__file__).resolve().parent / "bootstrap"
STEP_S = 0.010
LIMIT = 0.01  # of a step of 10 ms

SCRIPT = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
steps = int(sys.argv[1])
torch.manual_seed(0); torch.set_num_threads(1)
data = TensorDataset(torch.randn(64 * 32, 64), torch.randint(0, 10, (64 * 32,)))
model = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())], nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
times, before = [], None
while len(times) < steps:
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        now = time.thread_time()
        if before is not None:
            times.append(now - before)
        before = now
print(sorted(times[20:])[len(times[20:]) // 4])
"""

UNDER_BRIMFUL = "under brimful run"
KINDS = {"run": {}, "audit": {"checksums": True, "keep_out": True}, UNDER_BRIMFUL: {}}


def step_seconds(steps: int, kind: str | None) -> float:
    """Processor time of a step (lower quartile, as other processes only ever add to it); no probe
    where `kind` is None.
    """
    variables = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BRIMFUL_TRIAL_CONFIG")
    }
    argv = [sys.executable, "-c", SCRIPT, str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        if kind == UNDER_BRIMFUL:
            argv = [
                sys.executable,
                "-m",
                "brimful",
                "run",
                "--device",
                "cpu",
                "--home",
                folder,
                "--plan",
                "none",
                "--",
                *argv,
            ]
        elif kind is not None:
            config = KINDS[kind]
            asked = TrialConfig(
                folder=folder,
                device="cpu",
                worst_batch=False,
                cut=False,
                **{"keep_out": False, **config},
            )
            path = Path(folder, "trial_config.json")
            path.write_text(json.dumps(dataclasses.asdict(asked)))
            variables |= {"PYTHONPATH": str(BOOTSTRAP), "BRIMFUL_TRIAL_CONFIG": str(path)}
        done = subprocess.run(
            argv, env=variables, cwd=folder, capture_output=True, text=True, check=True
        )
    return float(done.stdout)


def pairs_of(kind: str, pairs: int, steps: int) -> list[tuple[float, float]]:
    """(without, with) of each pair; the order within a pair changes from one to the next."""
    measured = []
    for number in range(pairs):
        order = (None, kind) if number % 2 == 0 else (kind, None)
        times = {one is not None: step_seconds(steps, one) for one in order}
        measured.append((times[False], times[True]))
        print(
            f"  {kind} {number + 1}/{pairs}: {times[False] * 1e3:.3f} ms, "
            f"{times[True] * 1e3:.3f} ms",
            file=sys.stderr,
        )
    return measured


def summary(measured: list[tuple[float, float]]) -> dict:
    """Extra microseconds of a step and their share of it: median and range over the pairs."""
    extra = sorted((probed - plain) * 1e6 for plain, probed in measured)
    share = sorted((probed - plain) / STEP_S for plain, probed in measured)
    return {
        "extra_us": {"median": statistics.median(extra), "low": extra[0], "high": extra[-1]},
        "share_of_step": {"median": statistics.median(share), "low": share[0], "high": share[-1]},
        "plain_step_cpu_s": statistics.median(plain for plain, _ in measured),
        "pairs_cpu_s": measured,
    }


def cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"model name\s*:\s*(.+)", text)
    return found.group(1).strip() if found else platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    kinds = {kind: summary(pairs_of(kind, options.pairs, options.steps)) for kind in KINDS}
    result = {
        "what": "processor time that the probe adds to a training step, and its share of a step of "
        "10 ms",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "settings": {
            "pairs": options.pairs,
            "steps": options.steps,
            "step_s": STEP_S,
            "limit": LIMIT,
        },
        "kinds": kinds,
    }
    name = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    path = RESULTS / f"probe_cost-{name}-{datetime.date.today():%Y-%m}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    for kind, figures in kinds.items():
        extra, share = figures["extra_us"], figures["share_of_step"]
        over_pairs = f"{extra['low']:.0f} to {extra['high']:.0f} over the pairs"
        print(
            f"{kind}: {extra['median']:.0f} µs a step ({over_pairs}), {share['median']:.2%} of a "
            "step of 10 ms"
        )
    print(f"kept in {path}")
    return (
        0 if all(figures["share_of_step"]["median"] <= LIMIT for figures in kinds.values()) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
