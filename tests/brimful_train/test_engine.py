"""A whole training: what it prints, keeps and writes; how it ends; and that it goes on as if it had
never ended.
"""

import dataclasses
import errno
import itertools
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import DiskFull, DoesNotFit, Interrupted, Terminated, UsageError
from brimful_inside.probe import context as context_module
from brimful_inside.probe.hooks.exceptions import Failures
from brimful_train import (
    BatchingConfig,
    CheckpointConfig,
    OptimizerConfig,
    Peaks,
    Sum,
    exit_codes,
    fit,
)
from brimful_train.checkpoints import checkpoint as whole
from brimful_train.checkpoints.checkpoint import Disk
from brimful_train.data import pipeline
from brimful_train.data.batch_errors import WorkerDied
from brimful_train.engine import Stop
from brimful_train.reporting.progress_log import finite_or_none
from tests.brimful_train.ledger import (
    Faults,
    Stopped,
    checkpoint_steps,
    ledger_config,
    ledger_task,
    log_rows,
    network,
    network_config,
    network_task,
    same,
    started,
    statistics,
    stopping,
    weights,
)

EVERY_STEP = CheckpointConfig(every_epochs=None, every_steps=1)


@pytest.mark.parametrize("at_call", [3, 7, 13, 17])
def test_a_training_that_was_cut_off_goes_on_to_the_very_same_weights(at_call, tmp_path):
    """In the middle of an update (two micro-batches) and of an epoch (five updates), with dropout
    and running statistics.
    """
    options = {"dropout": 0.3, "norm": True}
    plain = network_task(**options)
    fit(plain, network_config(tmp_path / "whole", checkpoints=EVERY_STEP))
    cut = network_config(tmp_path / "cut", checkpoints=EVERY_STEP)
    with pytest.raises(Stopped):
        fit(stopping(network_task(**options), at_call), cut)
    task = network_task(seed=99, **options)  # other weights, until the checkpoint is loaded
    result = fit(task, cut)
    assert same(weights(task), weights(plain))
    assert same(list(task.model.buffers()), list(plain.model.buffers()))
    assert result.samples == 140


def test_what_was_finished_is_not_trained_again(tmp_path, capfd):
    task, again = network_task(), network_task(seed=5)
    before, after = fit(task, network_config(tmp_path)), fit(again, network_config(tmp_path))
    assert same(weights(again), weights(task))
    for name in ("steps", "measures", "best_step"):
        assert getattr(after, name) == getattr(before, name)
    stderr = capfd.readouterr().err
    assert ": 2 epochs done." in stderr and stderr.count("This training is finished") == 1


def test_a_batch_that_memory_made_smaller_is_kept_in_the_checkpoint(tmp_path):
    config = network_config(tmp_path, checkpoints=EVERY_STEP)
    with pytest.raises(Stopped):
        fit(stopping(network_task(faults=Faults([("forward", 2)])), 14), config)
    fit(network_task(), config)
    assert statistics(tmp_path)["micro_batch"] == 4


def test_a_checkpoint_of_another_model_or_of_other_data_is_refused_by_what_differs(tmp_path):
    fit(network_task(), network_config(tmp_path))
    wider = torch.nn.Sequential(torch.nn.Linear(6, 32), *list(network())[1:])
    with pytest.raises(
        UsageError,
        match=r"0\.weight has shape \(16, 6\) in the checkpoint and \(32, 6\) in the model",
    ):
        fit(dataclasses.replace(network_task(), model=wider), network_config(tmp_path))
    with pytest.raises(UsageError, match="made on 70 training samples, and there are 71"):
        fit(network_task(samples=71), network_config(tmp_path))


def test_settings_that_changed_are_reported_and_used(tmp_path, capfd):
    fit(network_task(), network_config(tmp_path, max_steps=2))
    capfd.readouterr()
    fit(
        network_task(), network_config(tmp_path, seed=3, optimizer=OptimizerConfig("adamw", lr=0.5))
    )
    stderr = capfd.readouterr().err
    for words in (
        "config.seed was 0 when the checkpoint was made and is 3 now",
        "met twice",
        "config.optimizer.lr was 0.01 when the checkpoint was made and is 0.5 now",
    ):
        assert words in stderr


def training(folder: str, epochs: str, pause_s: str = "0") -> None:
    """A training as a process of its own, that ends by exit codes."""
    base = network_task(dropout=0.2)

    def slow(model, batch):
        time.sleep(float(pause_s))
        return base.loss(model, batch)

    config = network_config(
        Path(folder),
        epochs=int(epochs),
        checkpoints=CheckpointConfig(every_epochs=None, every_steps=3),
    )
    try:
        fit(dataclasses.replace(base, loss=slow), config)
    except (Terminated, Interrupted) as error:
        raise SystemExit(error.exit_code) from None
    torch.save(weights(base), Path(folder) / "weights.pt")


def steps_written(folder: Path) -> int:
    return max(checkpoint_steps(folder), default=0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_after_a_checkpoint(number, code, tmp_path):
    process = started(training, tmp_path / "output", str(tmp_path), "2000", "0.005")
    ends = time.monotonic() + 100
    while not steps_written(tmp_path) and time.monotonic() < ends:
        time.sleep(0.01)
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == code, (tmp_path / "output.err").read_text()
    assert 0 < statistics(tmp_path)["updates"] == steps_written(tmp_path)


def full_disk(*numbers: int):
    """The disk is full for the checkpoints of these numbers, counted from 0."""
    real, calls = whole.write, itertools.count()

    def write(*args, **kwargs):
        if next(calls) in numbers:
            raise OSError(errno.ENOSPC, "No space left on device", str(args[1]))
        return real(*args, **kwargs)

    return mock.patch.object(whole, "write", write)


def test_a_disk_that_is_full_at_the_end_names_what_is_kept(tmp_path):
    with full_disk(2), pytest.raises(DiskFull) as ended:
        fit(network_task(), network_config(tmp_path, epochs=3))
    assert "step 15" in ended.value.problem and "step-0000000010" in ended.value.explanation
    assert steps_written(tmp_path) == 10


def test_a_disk_that_is_full_on_the_way_does_not_end_the_training(tmp_path, capfd):
    with full_disk(2, 3):
        fit(network_task(), network_config(tmp_path, epochs=6))
    assert steps_written(tmp_path) == 30
    assert ". The training goes on, and tries again" in capfd.readouterr().err


def test_statistics_have_the_names_and_units_that_are_promised(tmp_path):
    peaks = Peaks("cpu")
    with peaks.phase("encoding"):
        torch.zeros(8 << 20)
    fit(network_task(), network_config(tmp_path), peaks)
    written = statistics(tmp_path)
    rates = ("train_time_seconds", "samples_per_second", "avg_epoch_time_seconds")
    assert min(written[name] for name in rates) > 0
    for phase in ("encoding", "train", "eval"):
        assert 0.05 < written[f"peak_host_memory_{phase}_gb"] < 20
        for kind in ("", "_reserved"):
            assert written[f"peak_gpu_memory_{phase}{kind}_gb"] is None
    counts = {"effective_batch": 16, "updates": 10, "samples": 140}
    never = dict.fromkeys(("recoveries", "skipped_nan", "skipped_by_scaler", "resumed"), 0)
    assert written == {**written, **counts, **never}


@pytest.mark.parametrize(("ends", "samples"), [({"epochs": 0.5}, 20), ({"max_steps": 3}, 12)])
def test_epochs_may_be_a_part_of_one_and_steps_an_end_before(tmp_path, ends, samples):
    config = ledger_config(tmp_path, batch=BatchingConfig(micro_batch=4), **ends)
    assert fit(ledger_task(40), config).samples == samples


@pytest.mark.parametrize("keep_best", [True, False])
def test_a_new_best_evaluation_writes_a_checkpoint_where_the_best_is_to_stay(keep_best, tmp_path):
    config = CheckpointConfig(every_epochs=None, every_steps=10_000, keep_best=keep_best)
    fit(network_task(), network_config(tmp_path, epochs=4, checkpoints=config))
    steps = checkpoint_steps(tmp_path)
    assert (5 in steps or len(steps) > 1) == keep_best and 20 in steps


def test_a_loader_that_ends_early_leads_to_the_evaluation(tmp_path, monkeypatch):
    """As it does in a trial: what follows the training is to be seen."""
    modes, base, steps = [], network_task(), pipeline.DataPipeline.steps
    monkeypatch.setattr(
        pipeline.DataPipeline, "steps", lambda self, start: itertools.islice(steps(self, start), 2)
    )
    task = dataclasses.replace(
        base,
        measure=lambda model, batch: modes.append(model.training) or base.measure(model, batch),
    )
    fit(task, network_config(tmp_path, epochs=1))
    # the first batch is the one that is tried before the training
    assert len(modes) > 1 and not any(modes)


def test_an_evaluation_that_is_nan_is_never_the_best(tmp_path):
    base, calls = network_task(), itertools.count()

    def measure(model, batch):
        measured = base.measure(model, batch)
        if next(calls) == 1:  # after the probe: the first evaluation
            measured["loss"] = Sum(float("nan"), 1)
        return measured

    result = fit(dataclasses.replace(base, measure=measure), network_config(tmp_path))
    assert (result.best_step, result.best["loss"]) == (10, result.measures["loss"])


def test_tensorboard_that_is_not_installed_is_a_sentence(tmp_path):
    with (
        mock.patch.dict("sys.modules", {"torch.utils.tensorboard": None}),
        pytest.raises(UsageError, match="tensorboard"),
    ):
        fit(network_task(), network_config(tmp_path, tensorboard=True))


def test_tensorboard_can_be_read_back(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    result = fit(network_task(), network_config(tmp_path, epochs=3, tensorboard=True))
    board = events.EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert {"loss", "lr", "samples_per_s", "eval/loss", "eval/accuracy"} <= set(
        board.Tags()["scalars"]
    )
    assert [row.step for row in board.Scalars("loss")] == [5, 10, 15]
    assert board.Scalars("eval/loss")[-1].value == pytest.approx(result.measures["loss"], rel=1e-6)
    losses = [row["loss"] for row in log_rows(tmp_path, "epoch")]
    assert [row.value for row in board.Scalars("loss")] == pytest.approx(losses, rel=1e-6)


def test_checkpoints_by_the_clock_are_written_when_their_minutes_are_over(tmp_path):
    """Each loss takes a minute by the engine's clock; an update has two, the last of an epoch one.
    Due is it by the update that begins after three minutes, at whose end the checkpoint is
    written."""
    now, minutes, base = itertools.count(), {"past": 0.0}, network_task(eval_samples=0)

    def slow(model, batch):
        minutes["past"] += 1
        return base.loss(model, batch)

    config = network_config(
        tmp_path,
        epochs=4,
        checkpoints=CheckpointConfig(every_epochs=None, every_minutes=3, keep_last=100),
        log_every_s=1e9,
    )
    with mock.patch(
        "brimful_train.engine.time.perf_counter", lambda: 60 * minutes["past"] + 1e-6 * next(now)
    ):
        fit(dataclasses.replace(base, loss=slow), config)
    assert checkpoint_steps(tmp_path) == [3, 6, 9, 12, 15, 18, 20]


@settings(max_examples=20)
@given(
    every=st.integers(1, 60),
    runs=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=3),
)
def test_checkpoints_by_samples_are_written_whatever_the_batch(every, runs):
    """Each run goes on with a batch and an accumulation of its own. A checkpoint is due at the end
    of each update in which a multiple of `every` is reached, and of no other, but for the last of a
    run."""
    epoch, trained, expected = 30, 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoints = CheckpointConfig(
            every_epochs=None, every_samples=every, keep_last=999, keep_best=False
        )
        for number, (micro_batch, accumulation) in enumerate(runs, 1):
            ends, step = number * epoch, micro_batch * accumulation
            for before in range(trained, ends, step):
                after = min(before + step, ends)
                if after // every > before // every or after == ends:
                    expected.append(after)
            trained = ends
            batch = BatchingConfig(micro_batch=micro_batch, accumulation=accumulation)
            fit(
                ledger_task(epoch),
                ledger_config(folder, epochs=number, batch=batch, checkpoints=checkpoints),
            )
        loaded = [
            whole.read(path).state["counts"]["samples"]
            for path in (folder / "checkpoints").glob("step-*")
        ]
    assert sorted(loaded) == expected


def test_what_json_has_no_word_for_is_null():
    assert finite_or_none({"a": [float("nan"), 1.0, (float("inf"),)], "b": "nan"}) == {
        "a": [None, 1.0, [None]],
        "b": "nan",
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [(DoesNotFit("too large", "it is", "make it smaller"), 3), (Terminated(), 143)],
)
def test_an_error_ends_the_script_with_its_code_and_its_sentences(error, code, capsys):
    with pytest.raises(SystemExit) as ended, exit_codes():
        raise error
    assert ended.value.code == code
    assert capsys.readouterr().err.splitlines() == list(error.sentences())


def test_another_rank_prints_a_line(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit), exit_codes():
        raise DoesNotFit("too large", "it is", "make it smaller")
    assert capsys.readouterr().err == "rank 1: too large\n"


def test_a_probe_reports_the_error_as_one_that_nobody_caught(monkeypatch):
    failures = []
    probe = SimpleNamespace(failures=Failures(failures.append, lambda: ("train", 4, False)))
    monkeypatch.setattr(context_module, "_current", SimpleNamespace(probe=probe))
    with pytest.raises(SystemExit), exit_codes():
        raise DoesNotFit("too large", "it is", "make it smaller")
    (failure,) = failures
    assert (failure.type, failure.message, failure.caught) == (
        "brimful.errors.DoesNotFit",
        "too large",
        False,
    )


# --- signals ---


def test_a_second_interrupt_ends_at_once_and_a_repeated_termination_changes_nothing():
    """Clusters repeat a termination."""
    stop = Stop()
    with stop.noticing():
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGTERM


def test_a_second_interrupt_of_a_training_is_told_in_a_sentence(tmp_path):
    base = network_task()

    def loss(model, batch):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        return base.loss(model, batch)

    with pytest.raises(Interrupted, match="second time") as caught:
        fit(dataclasses.replace(base, loss=loss), network_config(tmp_path))
    assert caught.value.exit_code == 130 and signal.getsignal(signal.SIGINT) is not None


def test_a_worker_that_dies_while_a_checkpoint_is_written_leaves_it_whole(tmp_path, monkeypatch):
    """Torch's handler raises an error wherever the main thread is."""
    real = Disk.remove

    def remove(disk, folder):
        signal.raise_signal(signal.SIGCHLD)
        real(disk, folder)

    def dies(number, frame):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")

    monkeypatch.setattr(Disk, "remove", remove)
    before = signal.signal(signal.SIGCHLD, dies)
    config = network_config(
        tmp_path, checkpoints=CheckpointConfig(every_epochs=None, every_steps=2, keep_last=1)
    )
    try:
        with pytest.raises(WorkerDied, match="killed by signal: Killed"):
            fit(network_task(), config)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not [*(tmp_path / "checkpoints").glob(".*")] and steps_written(tmp_path) == 4


def test_the_handlers_that_were_there_are_put_back_also_after_an_error():
    handled = []
    before = signal.signal(signal.SIGTERM, lambda *_: handled.append("mine"))
    try:
        with pytest.raises(ValueError), Stop().noticing():
            raise ValueError
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        os.kill(os.getpid(), signal.SIGTERM)
        assert handled == ["mine"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_a_thread_nothing_is_caught():
    caught, before = [], signal.getsignal(signal.SIGTERM)

    def work():
        with Stop().noticing():
            caught.append(signal.getsignal(signal.SIGTERM) is not before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert caught == [False] and signal.getsignal(signal.SIGTERM) is before
