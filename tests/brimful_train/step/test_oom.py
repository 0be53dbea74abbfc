"""What is a shortage that a step is replayed for, and what is none."""

import gc
import weakref

import pytest
import torch

from brimful.errors import DoesNotFit
from brimful_train.data.batch_errors import BatchMemoryError
from brimful_train.step.oom import attempt

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
    "error", [DoesNotFit(WORDS), BatchMemoryError("DefaultCPUAllocator: can't allocate memory")]
)
def test_an_error_of_brimfuls_own_is_no_shortage_whatever_its_words(error):
    with pytest.raises(type(error)) as caught:
        attempt(raising(error))
    assert caught.value is error


def test_a_worker_that_was_killed_is_no_shortage_of_the_step_that_meets_its_error():
    with pytest.raises(BatchMemoryError, match="Bus error") as caught:
        attempt(
            raising(
                RuntimeError(
                    "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible "
                    "that …"
                )
            )
        )
    assert caught.value.exit_code == DoesNotFit.exit_code


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
