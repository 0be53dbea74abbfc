"""A training under `brimful run` that is looked at while it goes on, as `brimful monitor` looks:
made once, for all tests of the monitor.

The script waits for files at four moments, so that what it does then is known.
"""

import atexit
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import psutil

from brimful.codec import SCHEMA
from brimful.command import parse
from brimful.errors import RecordUnreadable
from brimful.measure.attempt import HEARTBEAT_S
from brimful.record import RecordWriter
from brimful.values import (
    Answer,
    Budget,
    Device,
    EffectiveSetting,
    Estimate,
    Objective,
    Opened,
    Plan,
    Source,
    State,
    Status,
    Verdict,
)
from brimful.verbs.monitor import Monitor
from tests.brimful.end_to_end.helper import environment

SCRIPT = """
import argparse, os, signal, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which comes when brimful is killed

class Slow(Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, index):
        time.sleep(0.05)  # far longer than a step takes, also on a busy machine
        return torch.full((16,), float(index)), torch.zeros(1)

model = nn.Linear(16, 1)

def wait(name, evaluates=False):
    time.sleep(0.6)  # the probe reports twice a second
    while not os.path.exists(name):
        if evaluates:
            model(torch.zeros(1, 16))
        else:
            (0 * model(torch.zeros(1, 16))).sum().backward()
        time.sleep(0.1)

optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
print("\\x1b[32mbefore\\x1b[0m hf_0123456789abcdefghij", flush=True)
while not os.path.exists("train"):
    time.sleep(0.05)
steps = 0
for epoch in range(args.epochs):
    for x, y in DataLoader(Slow(), batch_size=args.batch_size):
        loss = nn.functional.mse_loss(model(x), y) * 0 + 0.25
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        print(f"\\rstep {steps}", end="", flush=True)
        if steps == 6:
            wait("evaluate")
    print(flush=True)
    model.eval()
    with torch.no_grad():
        wait("fail", evaluates=True)
    raise RuntimeError("a defect of the script's own")
"""
BATCH_SIZE, STEPS, EPOCHS = 8, 6, 3
OF_EPOCH = 80 // BATCH_SIZE
PLANNED_PEAK_BYTES, PLANNED_RATE = 700 << 20, 250.0
WAIT_S = 90.0


class Watched(NamedTuple):
    """How it stood at each moment, and what is left of it."""

    home: Path
    record: Path
    statuses: dict[str, Status]  # "before", "train", "eval", "failed"; "killed" of another run
    seconds: dict[str, float]  # that had passed since it was started, by this process's clock
    error: str  # what brimful printed


@cache
def watched() -> Watched:
    folder = Path(tempfile.mkdtemp(prefix="watched-"))
    atexit.register(lambda: subprocess.run(["rm", "-rf", folder], check=False))
    (folder / "train.py").write_text(SCRIPT)
    home = folder / "home"
    _plan_in(home, folder)
    began_s = time.monotonic()
    process = _start(folder, home)
    statuses, seconds = {}, {}
    with patch.dict(sys.modules, pynvml=None):  # as on a machine without a card
        monitor = _monitor(home)
        moments: dict[str, tuple[Callable[[Status], bool], str]] = {
            "before": (
                # its memory is looked at more seldom than the rest
                lambda s: bool(s.tail) and (s.host.processes_bytes or 0) > 20 << 20,
                "train",
            ),
            "train": (_trained(STEPS), "evaluate"),
            "eval": (lambda s: _trained(OF_EPOCH)(s) and s.beat.phase == "eval", "fail"),
            "failed": (lambda s: s.state is State.ENDED, ""),
        }
        for name, (comes, then) in moments.items():
            statuses[name] = _until(monitor, comes)
            seconds[name] = time.monotonic() - began_s
            if name == "eval":
                _has_looked(process)
            if then:
                (folder / then).touch()
        record = Path(home / statuses["failed"].of)
        error = process.communicate(timeout=WAIT_S)[1]
        statuses["killed"], statuses["left"] = _killed(folder, home)
    return Watched(home, record, statuses, seconds, error)


def _trained(steps: int) -> Callable[[Status], bool]:
    """What the script does is seen at all places: its progress, its report, its output."""

    def comes(status: Status) -> bool:
        said = status.tail.get("stdout", ("",))[-1] == f"step {steps}"
        return said and status.left_s is not None and status.beat.steps == steps

    return comes


def _has_looked(process: subprocess.Popen) -> None:
    """Waits for a heartbeat of brimful: one is due, and its loop has gone round since."""
    time.sleep(HEARTBEAT_S)
    brimful = psutil.Process(process.pid)
    waits = brimful.num_ctx_switches().voluntary
    while brimful.num_ctx_switches().voluntary < waits + 20:
        time.sleep(0.05)


def _killed(folder: Path, home: Path) -> tuple[Status, Status]:
    """A run whose brimful is killed in its training: while its command still runs, and after."""
    for name in ("evaluate", "fail"):
        (folder / name).unlink()
    process = _start(folder, home)
    monitor = _monitor(home)
    _until(monitor, _trained(STEPS))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    killed = _until(monitor, lambda s: s.state is State.CUT_OFF)
    (folder / "evaluate").touch()
    (folder / "fail").touch()
    return killed, _until(monitor, lambda s: s.host.processes == 0)


def _start(folder: Path, home: Path) -> subprocess.Popen:
    words = ("run", "--device", "cpu", "--plan", "none", "--fresh", "--", sys.executable)
    script = ("train.py", "--batch-size", str(BATCH_SIZE), "--epochs", str(EPOCHS))
    return subprocess.Popen(
        [sys.executable, "-m", "brimful", *words, *script],
        cwd=folder,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _monitor(home: Path) -> Monitor:
    """Once there is a record that goes on."""
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:
        with suppress(RecordUnreadable):  # it has just been made, and is empty
            monitor = Monitor(home=home)
            if monitor.read().state is State.GOING:
                return monitor
        time.sleep(0.1)
    raise AssertionError("no run was started")


def _until(monitor: Monitor, comes: Callable[[Status], bool]) -> Status:
    deadline_s = time.monotonic() + WAIT_S
    status = monitor.read()
    while not comes(status):
        assert time.monotonic() < deadline_s, status
        time.sleep(0.1)
        status = monitor.read()
    return status


def _plan_in(home: Path, folder: Path) -> None:
    """What `tune` would have left of this command."""
    opened = Opened(
        SCHEMA,
        "20261101-120000-tune-train",
        "tune",
        (),
        parse((sys.executable, "train.py", "--batch-size", "8", "--epochs", "1")),
        Device("cpu", "cpu"),
        None,
        1.0,
        Budget(1 << 30, 2 << 30, 1 << 30, "host", "half of it"),
        working_folder=str(folder),
    )
    with closing(RecordWriter.create(home, opened)) as writer:
        writer.append(
            Plan(
                Objective.THROUGHPUT,
                (EffectiveSetting("batch_size", 64, BATCH_SIZE, "the fastest", Source.MEASURED),),
                "",
                True,
                3,
                0,
                sizes=(
                    Answer({"batch_size": 4}, Verdict.FITS, Estimate(1.0, Source.MEASURED)),
                    Answer(
                        {"batch_size": BATCH_SIZE},
                        Verdict.FITS,
                        Estimate(PLANNED_PEAK_BYTES, Source.MEASURED),
                        samples_per_s=Estimate(PLANNED_RATE, Source.MEASURED),
                    ),
                ),
            )
        )
