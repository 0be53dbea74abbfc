"""Memory that is missing while a batch is made ends the training in a sentence: no sample is left
out or trained on twice.
"""

import faulthandler
import gc
import os
import signal
import time

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from brimful.errors import DoesNotFit, UsageError
from brimful.measure.outcome import is_final
from brimful.values import Failure
from brimful_inside.probe.hooks.exceptions import Failures, kind_of
from brimful_inside.simulator.oom_patterns import DEVICE, HOST, SHARED, match_oom
from brimful_train import BatchingConfig, Config, OptimizerConfig, Task, fit
from brimful_train.config import DataConfig
from brimful_train.data.batch_errors import (
    BatchMemoryError,
    BatchNotMade,
    SharedMemoryFull,
    WorkerDied,
    batches_are_made,
    dead_worker,
)
from brimful_train.data.epoch_sampler import EpochSampler
from brimful_train.data.pipeline import DataPipeline

CPU = torch.device("cpu")
ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 400000 "
    "bytes. Error code 12 (Cannot allocate memory)"
)
KILLED = "DataLoader worker (pid 7) is killed by signal: {}. "
NUMPY = numpy._core._exceptions._ArrayMemoryError  # type: ignore[attr-defined]


def allocator():
    return RuntimeError(ALLOCATOR)


def of_numpy():
    return NUMPY((1 << 40,), numpy.dtype("uint8"))


MISSING = [
    allocator,
    MemoryError,
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"),
    of_numpy,
]


class Lacks(Dataset):
    """Each sample is its index; memory is missing once, when so many were made, in the process that
    makes them.
    """

    def __init__(self, error, at, length=64, only_in_workers=False):
        self.error, self.at, self.length, self.only_in_workers = error, at, length, only_in_workers
        self.made = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if get_worker_info() is not None or not self.only_in_workers:
            self.made += 1
            if self.made == self.at:
                self.error_is_raised()
        return torch.full((3,), float(index)), torch.tensor(index)

    def error_is_raised(self):
        raise self.error()


class Dies(Lacks):
    """A worker is killed by this signal."""

    def error_is_raised(self):
        faulthandler.disable()
        os.kill(os.getpid(), self.error)


@pytest.fixture(autouse=True)
def no_dead_worker_is_left_to_other_tests():
    """Torch raises at the end of any child process while the dead one's loader is somewhere."""
    yield
    gc.collect()


def trained(folder, data, batches, workers=0, eval_data=None, waits_s=0.0):
    def loss(model, batch):
        batches.append(batch[1].tolist())
        time.sleep(waits_s)
        return (model(batch[0]) ** 2).mean() * 1e-9

    config = Config(
        folder,
        epochs=1,
        device="cpu",
        data=DataConfig(workers=workers),
        batch=BatchingConfig(micro_batch=8, accumulation=2),
        optimizer=OptimizerConfig(name="sgd", lr=0.05, momentum=0.0, weight_decay=0.0),
    )
    more = {"eval_data": eval_data, "best": ("loss", "min")} if eval_data is not None else {}
    return fit(Task("lacks", nn.Linear(3, 1), loss, data, **more), config)


@pytest.mark.parametrize("error", MISSING)
@pytest.mark.parametrize("at", [13, 60])  # in the second micro-batch of a step, in the last step
def test_no_sample_is_trained_on_twice_and_the_training_ends_with_its_own_error(
    error, at, tmp_path
):
    batches: list[list[int]] = []
    with pytest.raises(BatchNotMade, match="while a batch was being made") as caught:
        trained(tmp_path, Lacks(error, at), batches)
    whole, flat = (at - 1) // 8, [index for batch in batches for index in batch]
    assert (
        len(flat) == len(set(flat)) == 8 * whole and len(batches) == whole
    )  # nothing was replayed, nothing was cut
    assert str(error()).strip()[:60] in str(caught.value) and "smaller" in caught.value.suggestion


@pytest.mark.parametrize("error", [allocator, MemoryError, of_numpy])
def test_what_a_worker_lacked_is_reported_in_its_words(error, tmp_path):
    with pytest.raises(BatchMemoryError, match="in DataLoader worker process 0") as caught:
        trained(tmp_path, Lacks(error, 20, only_in_workers=True), [], workers=1)
    assert (
        type(error()).__name__ in str(caught.value) and "fewer workers" in caught.value.suggestion
    )


@pytest.mark.parametrize(
    ("number", "error"),
    [
        (signal.SIGBUS, SharedMemoryFull),
        (signal.SIGKILL, WorkerDied),
        (signal.SIGSEGV, WorkerDied),
    ],
)
def test_a_worker_that_died_ends_the_training(number, error, tmp_path):
    """Torch raises wherever the main thread is, here in a forward pass, which lacks nothing."""
    batches: list[list[int]] = []
    with pytest.raises(error, match=r"while a batch was being made|while it made batches"):
        trained(tmp_path, Dies(number, 30, only_in_workers=True), batches, workers=1, waits_s=0.5)
    assert 1 <= len(batches) <= 3 and all(len(batch) == 8 for batch in batches)


def test_in_evaluation_as_in_training(tmp_path):
    batches: list[list[int]] = []
    with pytest.raises(BatchMemoryError, match="DefaultCPUAllocator"):
        trained(tmp_path, Lacks(allocator, 999), batches, eval_data=Lacks(allocator, 13))
    assert len(batches) <= 1, "no evaluation batch was cut"


def test_where_the_worst_micro_batches_are_made(tmp_path):
    sampler = EpochSampler(
        64, seed=0, micro_batch=8, accumulation=1, sizes=numpy.arange(64) + 1, max_tokens=512
    )
    pipeline = DataPipeline(Lacks(MemoryError, 3), sampler, CPU, DataConfig(workers=0), 0)
    step = pipeline.worst_step(lambda samples: samples)
    with pytest.raises(BatchMemoryError, match="MemoryError"):
        step.load(0, 0, step.parts[0])


def test_other_errors_are_raised_as_they_are():
    for error in (
        ValueError("out of memory? no"),
        UsageError("CUDA out of memory is what I say"),
        RuntimeError("broken"),
    ):
        with pytest.raises(type(error)) as caught, batches_are_made():
            raise error
        assert caught.value is error and dead_worker(error) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [(allocator, HOST), (MemoryError, HOST), (MISSING[2], DEVICE), (of_numpy, HOST)],
)
def test_from_outside_it_is_known_as_missing_memory_that_a_smaller_batch_may_mend(error, kind):
    with pytest.raises(BatchNotMade) as caught, batches_are_made():
        raise error()
    assert kind_of(caught.value) == kind
    assert isinstance(caught.value, DoesNotFit) and caught.value.__cause__ is not None
    name = f"{type(caught.value).__module__}.{type(caught.value).__qualname__}"
    reported: list[Failure] = []
    Failures(reported.append, lambda: ("train", 0, False)).left_the_script(caught.value)
    assert not is_final(reported[0])
    pattern = match_oom("", f"Traceback (most recent call last):\n  File\n{name}: {caught.value}\n")
    assert pattern is not None and pattern.kind == kind


def test_the_loader_s_own_error_is_read_with_its_cause():
    outer = RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly")
    assert isinstance(dead_worker(outer), WorkerDied)
    outer.__cause__ = RuntimeError(KILLED.format("Bus error"))
    full = dead_worker(outer)
    assert isinstance(full, SharedMemoryFull) and "Bus error" in str(full)
    assert kind_of(full) == SHARED and "emory ran out" not in str(full).replace("/dev/shm", "")
    assert isinstance(dead_worker(RuntimeError(KILLED.format("Killed"))), WorkerDied)
