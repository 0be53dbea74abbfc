"""Where a step cannot be replayed because others wait within it, all ranks go back to the last
checkpoint together.
"""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import psutil
import pytest

from brimful_train import BatchingConfig, CheckpointConfig, OptimizerConfig, fit
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.step import oom
from brimful_train.step.oom import SmallerFits
from tests.brimful_train.ledger import (
    ROOT,
    Faults,
    environment,
    farthest,
    network_config,
    network_task,
    statistics,
    weights,
)

HERE = "tests.brimful_train.test_oom_limits"
pytestmark = pytest.mark.heavy


# By start: where rank 1 runs out of memory. Under overlap, 13 is the first micro-batch of an
# update, whose gradients stay on the rank: it is replayed. 39 is the last one of the first update
# that is overlapped after that.
FAULTS = {
    "fsdp2": [[("forward", 9)], [("eval", 2)], []],
    "overlap": [[("backward", 13), ("backward", 39)], []],
}


def training(folder: str, how: str) -> None:
    rank = int(os.environ["RANK"])
    task = network_task(faults=Faults(FAULTS[how][start()] if rank == 1 else []))
    options = {"parallel": "fsdp2"} if how == "fsdp2" else {"overlap": True}
    config = network_config(
        Path(folder),
        epochs=4,
        batch=BatchingConfig(micro_batch=4, accumulation=2),
        optimizer=OptimizerConfig("sgd", lr=0.1),
        checkpoints=CheckpointConfig(every_epochs=None, every_steps=2),
        clip_norm=1.0,
        **options,
    )
    with mock.patch("brimful_train.step.step.OVERLAP_AFTER", 5):
        fit(task, config)
    if rank == 0:
        Path(folder, "start.json").write_text(json.dumps(start()))


def start() -> int:
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def failing(folder: str, how: str, where: str) -> None:
    """Rank 1 meets an error of its own, while rank 0 waits for it in a collective of FSDP's or
    DDP's.
    """
    task, calls = network_task(), itertools.count()
    original = getattr(task, where)

    def raises(model: object, batch: object) -> object:
        if next(calls) > (5 if where == "measure" else 40):
            raise ValueError("a test")
        return original(model, batch)

    if int(os.environ["RANK"]) == 1:
        task = dataclasses.replace(task, **{where: raises})
    options = {"parallel": "fsdp2"} if how == "fsdp2" else {"overlap": True}
    with mock.patch("brimful_train.step.step.OVERLAP_AFTER", 5):
        fit(
            task,
            network_config(Path(folder), epochs=40, batch=BatchingConfig(micro_batch=4), **options),
        )


def under_torchrun(
    folder: Path, restarts: int, *how: str, function: str = "training", timeout_s: float = 200
) -> subprocess.CompletedProcess[str]:
    program = folder / "train.py"
    program.write_text(f"import sys\nfrom {HERE} import {function}\n{function}(*sys.argv[1:])\n")
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command += ["--max-restarts", str(restarts), "--monitor-interval", "0.2", str(program)]
    started = subprocess.Popen(
        [sys.executable, *command, str(folder / "out"), *how],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output = started.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:  # ranks that hang outlive torchrun
        for process in [*psutil.Process(started.pid).children(recursive=True), started]:
            process.kill()
        started.communicate()
        raise
    return subprocess.CompletedProcess(command, started.returncode, *output)


@pytest.mark.parametrize(("how", "starts"), [("fsdp2", 2), ("overlap", 1)])
def test_all_ranks_go_back_and_end_where_the_run_that_never_failed_ends(how, starts, tmp_path):
    done = under_torchrun(tmp_path, 3, how)
    assert done.returncode == 0, done.stderr[-6000:]
    assert json.loads((tmp_path / "out" / "start.json").read_text()) == starts, done.stderr[-6000:]
    written = statistics(tmp_path / "out")
    expected = ({"fsdp2": 2, "overlap": 1}[how], 280, 16)
    assert (written["micro_batch"], written["samples"], written["effective_batch"]) == expected

    alone = network_task()
    batch = BatchingConfig(micro_batch=16)
    fit(
        alone,
        network_config(
            tmp_path / "one",
            epochs=4,
            batch=batch,
            optimizer=OptimizerConfig("sgd", lr=0.1),
            clip_norm=1.0,
        ),
    )
    newest = Checkpoints(tmp_path / "out" / "checkpoints", CheckpointConfig(), print).newest()
    assert newest is not None
    assert (
        farthest(
            weights(alone),
            [newest.state["model"][name] for name, _ in alone.model.named_parameters()],
        )
        < 1e-5
    )


@pytest.mark.parametrize(("how", "where"), [("fsdp2", "measure"), ("overlap", "loss")])
def test_an_error_of_one_rank_ends_those_that_wait_for_it_in_a_collective(how, where, tmp_path):
    done = under_torchrun(tmp_path, 0, how, where, function="failing", timeout_s=100)
    assert done.returncode == 1 and "ValueError: a test" in done.stderr, done.stderr[-6000:]


def test_without_torchrun_the_error_names_what_to_do(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(SmallerFits) as raised:
        oom.Restart().smaller(4, "a test")
    assert (
        "--max-restarts" in raised.value.suggestion
        and "micro-batch to 4" in raised.value.suggestion
    )
