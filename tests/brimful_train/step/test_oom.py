"""What is a shortage that a step is replayed for, and what is none."""

import gc
import os
import weakref

import pytest
import torch

from brimful.errors import DoesNotFit
from brimful_train.data.batch_errors import BatchMemoryError, SharedMemoryFull
from brimful_train.step.oom import Missing, attempt, expands_segments

WORDS = "CUDA out of memory. Tried to allocate 1 GiB"


def raising(error):
    def work():
        raise error

    return work


def test_a_shortage_is_reported_by_its_pattern_and_its_first_line():
    missing = attempt(raising(torch.OutOfMemoryError(f"{WORDS}\nmore")))
    assert missing is not None and (missing.pattern, missing.message) == (
        "torch.OutOfMemoryError",
        WORDS,
    )
    assert attempt(lambda: None) is None


@pytest.mark.parametrize(
    "error",
    [
        DoesNotFit(WORDS),
        BatchMemoryError("DefaultCPUAllocator: can't allocate memory"),
        OSError(24, "Too many open files"),
        RuntimeError("can't start new thread"),
        RuntimeError("unable to write to file </torch_1_2>: No space left on device (28)"),
    ],
)
def test_brimfuls_own_errors_and_want_of_another_resource_are_no_shortage_whatever_the_words(
    error,
):
    with pytest.raises(type(error)) as caught:
        attempt(raising(error))
    assert caught.value is error


def test_a_worker_that_was_killed_is_no_shortage_of_the_step_that_meets_its_error():
    with pytest.raises(SharedMemoryFull, match="Bus error") as caught:
        attempt(
            raising(
                RuntimeError(
                    "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible "
                    "that …"
                )
            )
        )
    assert caught.value.exit_code != DoesNotFit.exit_code


def test_an_attempt_keeps_nothing_of_what_failed():
    held: list = []

    def work():
        tensor = torch.zeros(10)
        held.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    missing = attempt(work)
    gc.disable()  # gone without a collection
    try:
        assert (
            missing is not None and missing.message == "CUDA out of memory." and held[0]() is None
        )
    finally:
        gc.enable()


IN_PIECES = "Tried to allocate 20.00 MiB. 1.69 GiB is reserved by PyTorch but unallocated."


def test_memory_in_pieces_switches_expandable_segments_on_once(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", taken.append, raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    missing = Missing("CUDA out of memory", IN_PIECES)
    assert [expands_segments(missing) for _ in range(2)] == [True, False]
    assert taken == ["expandable_segments:True"]
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"].startswith("max_split_size_mb:128,")


@pytest.mark.parametrize(
    ("message", "conf"),
    [
        (IN_PIECES.replace("1.69 GiB", "10.00 MiB"), ""),
        (IN_PIECES, "expandable_segments:True"),
        (IN_PIECES, "backend:cudaMallocAsync"),
        ("out of memory", ""),
    ],
)
def test_expandable_segments_stay_as_they_are_where_they_would_not_help(monkeypatch, message, conf):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    assert not expands_segments(Missing("CUDA out of memory", message))
