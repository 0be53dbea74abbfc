"""A command that runs out of something else than memory: what, and what to do, is said in a
sentence, and no smaller batch size is tried.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brimful.record import read_record
from brimful.values import Outcome
from tests.brimful.end_to_end.helper import environment, script
from tests.brimful.end_to_end.test_shared_memory import mounts

TRAINING = """
import argparse, os, tempfile, threading, time, torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--takes")
args = parser.parse_args()
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held = []
def take():
    if args.takes == "descriptors":
        held.append(open("/dev/null"))
    elif args.takes == "disk":
        held.append(tempfile.NamedTemporaryFile(buffering=0, delete=False))
        held[-1].write(b"x" * 100_000)
    elif args.takes == "checkpoint":
        torch.save(torch.zeros(100_000), f"{tempfile.gettempdir()}/{len(held)}.pt"), held.append(0)
    elif args.takes == "threads":  # root has no limit of them
        os.setresuid(54321, 54321, 0)
        try:
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        finally:
            os.setresuid(0, 0, 0)
    elif args.takes == "addresses":
        held.append(torch.empty(1 << 28))
for step in range(100):
    model(torch.randn(args.batch_size, 16)).sum().backward()
    optimizer.step()
    for _ in range(300 if step else 0):
        take()
"""
MOUNT = "mkdir -p full && mount -t tmpfs -o size=1m tmpfs full && export TMPDIR=$PWD/full"


def of(folder: Path, before: str, verb: str, takes: str, *prefix: str):
    """(exit code, what was said, the record) of a verb, after the shell has done something."""
    path = script(folder, TRAINING)
    words = f"{before} && exec {sys.executable} -m brimful {verb} --device cpu -- {sys.executable} "
    done = subprocess.run(
        [*prefix, "bash", "-c", f"{words} {path} --batch-size 64 --takes {takes}"],
        cwd=folder,
        env=environment(folder / "home"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = " ".join(done.stderr.split())
    assert done.returncode == 5, said
    record = read_record("latest", folder / "home")
    return said, [end.outcome for end in (record.run.attempts if record.run else record.trials)]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("verb", "before", "takes", "outcome", "says"),
    [
        (
            "run",
            "ulimit -Sn 200",
            "descriptors",
            Outcome.NO_FILE_DESCRIPTORS,
            ("its limit (ulimit -n) is 200", "raise the limit (ulimit -n 65536)"),
        ),
        ("tune", "ulimit -Sn 200", "descriptors", Outcome.NO_FILE_DESCRIPTORS, ("ulimit -n",)),
        (
            "run",
            "ulimit -v 12000000",
            "addresses",
            Outcome.FULL_ADDRESS_SPACE,
            ("limit of address space (ulimit -v, here in bytes)", "12,288,000,000", "lift it"),
        ),
        *(
            pytest.param(
                "run",
                MOUNT,
                takes,
                Outcome.FULL_DISK,
                ("a disk ran full", "full has", "of 1.00 MiB now", "TMPDIR"),
                marks=pytest.mark.skipif(not mounts(), reason="needs root, for its own mount"),
            )
            for takes in ("disk", "checkpoint")
        ),
        pytest.param(
            "run",
            "ulimit -u 60",
            "threads",
            Outcome.NO_PROCESSES,
            ("could start no further thread", "(ulimit -u) is 60", "--pids-limit"),
            marks=pytest.mark.skipif(os.getuid() != 0, reason="needs a user with no processes"),
        ),
    ],
)
def test_a_limit_of_the_shell_or_a_full_disk_is_named_with_its_remedy(
    tmp_path, verb, before, takes, outcome, says
):
    prefix = ("unshare", "-m") if before == MOUNT else ()
    said, outcomes = of(tmp_path, before, verb, takes, *prefix)
    assert outcomes == [outcome]
    parts = (*says, "brimful tries no smaller batch size for it")
    assert not [part for part in parts if part.lower() not in said.lower()], said
