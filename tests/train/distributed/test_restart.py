"""Where a step cannot be replayed because others wait within it, all ranks go back to the last checkpoint together."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import psutil
import pytest
import torch

from brimful.train import (
    BatchingConfig,
    CheckpointConfig,
    OptimizerConfig,
    fit,
)
from brimful.train.distributed import restart
from brimful.train.distributed.restart import Attempt
from tests.train.ledger import ROOT, Faults, environment, farthest, network_config, network_task, weights

HERE = "tests.train.test_restart"
pytestmark = pytest.mark.heavy


# By attempt: where rank 1 runs out of memory. Under overlap, 13 is the first micro-batch of an update, whose gradients stay on
# the rank: it is replayed. 39 is the last one of the first update that is overlapped after that.
FAULTS = {"fsdp2": [[("forward", 9)], [("eval", 2)], []], "overlap": [[("backward", 13), ("backward", 39)], []]}


def training(folder: str, how: str) -> None:
    rank = int(os.environ["RANK"])
    task = network_task(faults=Faults(FAULTS[how][Attempt.this().number] if rank == 1 else []))
    options = {"parallel": "fsdp2"} if how == "fsdp2" else {"overlap": True}
    config = network_config(
        Path(folder), epochs=4, batch=BatchingConfig(micro_batch=4, accumulation=2), optimizer=OptimizerConfig("sgd", lr=0.1),
        checkpoints=CheckpointConfig(every_epochs=None, every_steps=2), clip_norm=1.0, **options,
    )  # fmt: skip
    with mock.patch("brimful.train.step.step.OVERLAP_AFTER", 5):
        fit(task, config)
    if rank == 0:
        attempt = Attempt.this()
        Path(folder, "attempt.json").write_text(json.dumps(vars(attempt)))


def failing(folder: str, how: str, where: str, kind: str) -> None:
    """Rank 1 meets an error of its own, while rank 0 waits for it in a collective of FSDP's or DDP's."""
    task, calls = network_task(), 0
    other = int(os.environ["RANK"]) == 1

    def raises(model: object, batch: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 40:
            Path(folder).parent.joinpath("raised").write_text(str(time.time()))
            raise {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt, "SystemExit": SystemExit}[kind]("a test")

    if other:
        original = getattr(task, where)
        wrapped = lambda model, batch: raises(model, batch) or original(model, batch)  # noqa: E731
        task = dataclasses.replace(task, **{where: wrapped})
    options = {"parallel": "fsdp2"} if how == "fsdp2" else {"overlap": True}
    with mock.patch("brimful.train.step.step.OVERLAP_AFTER", 5):
        fit(task, network_config(Path(folder), epochs=40, batch=BatchingConfig(micro_batch=4), **options))


def under_torchrun(
    folder: Path, *how: str, function: str = "training", timeout_s: float = 200
) -> subprocess.CompletedProcess[str]:
    program = folder / "train.py"
    program.write_text(f"import sys\nfrom {HERE} import {function}\n{function}(*sys.argv[1:])\n")
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--standalone", str(program)]
    started = subprocess.Popen(
        [sys.executable, *command, str(folder / "out"), *how],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        told = started.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:  # ranks that hang outlive torchrun
        for process in [*psutil.Process(started.pid).children(recursive=True), started]:
            process.kill()
        started.communicate()
        raise
    return subprocess.CompletedProcess(command, started.returncode, *told)


@pytest.mark.parametrize(("how", "attempt"), [("fsdp2", (2, 2, 5)), ("overlap", (1, 1, None))])
def test_all_ranks_go_back_and_end_where_the_run_that_never_failed_ends(how, attempt, tmp_path):
    done = under_torchrun(tmp_path, how)
    assert done.returncode == 0, done.stderr[-6000:]
    last = json.loads((tmp_path / "out" / "attempt.json").read_text())
    assert (last["number"], last["piece"], last["eval_piece"]) == attempt, done.stderr[-6000:]
    statistics = json.loads((tmp_path / "out" / "training_stats.json").read_text())
    assert statistics["samples"] == 280 and statistics["effective_batch"] == 16

    alone = network_task()
    batch = BatchingConfig(micro_batch=16)
    fit(alone, network_config(tmp_path / "one", epochs=4, batch=batch, optimizer=OptimizerConfig("sgd", lr=0.1), clip_norm=1.0))
    from brimful.train.checkpoints import Checkpoints

    newest = Checkpoints(tmp_path / "out" / "checkpoints", CheckpointConfig(), print).newest()
    assert newest is not None
    assert farthest(weights(alone), [newest.state["model"][name] for name, _ in alone.model.named_parameters()]) < 1e-5


@pytest.mark.parametrize(
    ("how", "where", "kind"),
    [
        ("fsdp2", "loss", "ValueError"),
        ("fsdp2", "measure", "ValueError"),
        ("overlap", "loss", "KeyboardInterrupt"),
        ("overlap", "loss", "SystemExit"),
    ],
)
def test_an_error_of_one_rank_ends_those_that_wait_for_it_in_a_collective(how, where, kind, tmp_path):
    done = under_torchrun(tmp_path, how, where, kind, function="failing", timeout_s=55)
    assert time.time() - float((tmp_path / "raised").read_text()) < 20
    assert done.returncode == 1, done.stderr[-6000:]
    assert f"Rank 1 ended with an error ({kind}: a test). All ranks end with it." in done.stderr
    assert "Connection closed" not in done.stderr  # nobody is told of what only came of it


@pytest.fixture
def shared(monkeypatch):
    """Two ranks' flags in this process, and the store that they share."""
    store = torch.distributed.HashStore()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(restart, "_shared_store", lambda: store)
    monkeypatch.setattr(restart, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(restart, "OWN_END_S", 0.5)
    monkeypatch.setattr(restart, "HEARD_WITHIN_S", 5.0)
    return store


def test_a_rank_that_ends_by_itself_is_not_ended_by_the_flag(shared, monkeypatch):
    monkeypatch.setattr(restart, "_trainings", itertools.repeat(0))
    said, ended = [], []
    monkeypatch.setattr(restart.os, "_exit", ended.append)
    first, second = (restart.Restart(said.append, lambda: None) for _ in range(2))
    waiting = threading.Thread(target=first.end, args=("one", 1))
    waiting.start()
    time.sleep(0.2)  # its watcher has seen the flag
    second.end("two", 1)
    waiting.join(2)
    assert not waiting.is_alive()
    second._watcher.join(2)
    assert not second._watcher.is_alive() and (said, ended) == ([], [])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # what stands in for the end of the process
def test_one_that_does_not_is_ended_with_the_words_and_the_exit_code_of_the_flag(shared, monkeypatch):
    monkeypatch.setattr(restart, "_trainings", itertools.repeat(0))
    said, ended = [], []
    monkeypatch.setattr(restart.os, "_exit", lambda code: ended.append(code) or sys.exit())
    first, second = (restart.Restart(said.append, lambda: None) for _ in range(2))
    first.end("one", 7, "Rank 0 ended.")
    second._watcher.join(5)
    assert (said, ended) == (["Rank 0 ended."], [7])


def test_a_rank_that_hears_nothing_holds_up_nobody(shared, monkeypatch):
    monkeypatch.setattr(restart, "HEARD_WITHIN_S", 0.3)
    begun = time.monotonic()
    restart.Restart(print, lambda: None).end("alone", 1)
    assert 0.2 < time.monotonic() - begun < 3


def test_a_training_after_one_that_ended_has_a_flag_of_its_own(shared, monkeypatch):
    monkeypatch.setattr(restart, "HEARD_WITHIN_S", 0.1)
    first = restart.Restart(print, lambda: None)
    first.end("ended", 1)
    second = restart.Restart(print, lambda: None)
    assert shared.check([first._key]) and not shared.check([second._key])
    second.close()


def test_without_a_store_that_outlives_the_ranks_it_is_a_sentence():
    from brimful.errors import DoesNotFit
    from brimful.train.distributed.restart import Restart

    with mock.patch.dict(os.environ):
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        alone = Restart(print, lambda: None)
        with pytest.raises(DoesNotFit, match="cannot be replayed"):
            alone.smaller(4, "a test")
