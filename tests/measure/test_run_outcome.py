"""Why an attempt of a run ended: its exit code first, then what its ranks told, the cause before its consequences."""

from dataclasses import replace

import pytest

from brimful.measure.run_outcome import Ending, Told, outcome_of
from brimful.values import Failure, Outcome

FELL = Ending(exit_code=1, by_signal=None, over_host_limit=False, oom_kills=0, stderr_tail="", last_step=10)


def told(kind: str, type_: str = "builtins.ValueError", message: str = "", rank: int = 0, caught: bool = False, step: int = 10):
    return Told(rank, Failure(kind, type_, message, "", None, "train", step, caught))


OUT = told("out_of_device_memory", "torch.OutOfMemoryError", "CUDA out of memory", rank=1)
PEER = told("crashed", "torch.distributed.DistBackendError", "Connection closed by peer")
OWN = told("crashed", "KeyError", "'lr'")
FINAL = told("crashed", "brimful.errors.DoesNotFit", "the cards do not hold it", rank=1)
ELSEWHERE = told("crashed", "brimful.errors.DoesNotFit", "The training does not fit into the memory of rank 1.")


@pytest.mark.parametrize(
    ("ending", "failures", "outcome"),
    [
        (replace(FELL, exit_code=0), [], Outcome.COMPLETED),
        (replace(FELL, exit_code=0), [replace(OUT, failure=replace(OUT.failure, caught=True))], Outcome.COMPLETED),
        (FELL, [PEER, OUT], Outcome.OUT_OF_DEVICE_MEMORY),
        (FELL, [OWN], Outcome.CRASHED),
        (FELL, [FINAL], Outcome.OUT_OF_HOST_MEMORY),
        (replace(FELL, on_host=False), [FINAL], Outcome.OUT_OF_DEVICE_MEMORY),
        (replace(FELL, exit_code=3), [], Outcome.CRASHED),
        (
            FELL,
            [told("crashed", "brimful.train.distributed.ranks.RankFailed", "Rank 1 ended with an error."), OWN],
            Outcome.CRASHED,
        ),
        (FELL, [PEER], Outcome.CRASHED),
        (replace(FELL, oom_kills=1), [PEER], Outcome.OUT_OF_HOST_MEMORY),
        (replace(FELL, oom_kills=1), [OWN], Outcome.CRASHED),
        (replace(FELL, stderr_tail="exitcode  : -9 (pid: 7)"), [PEER], Outcome.KILLED),
        (FELL, [told("out_of_device_memory", caught=True, step=10)], Outcome.OUT_OF_DEVICE_MEMORY),
        (FELL, [told("out_of_device_memory", caught=True, step=3)], Outcome.CRASHED),
        (replace(FELL, stderr_tail="torch.OutOfMemoryError: CUDA out of memory."), [], Outcome.OUT_OF_DEVICE_MEMORY),
        (replace(FELL, exit_code=-9), [], Outcome.KILLED),
        (replace(FELL, exit_code=-11), [], Outcome.KILLED),
        (replace(FELL, over_host_limit=True, exit_code=None), [OWN], Outcome.OUT_OF_HOST_MEMORY),
        (replace(FELL, by_signal=Outcome.TERMINATED, exit_code=0), [], Outcome.TERMINATED),
        (replace(FELL, by_signal=Outcome.INTERRUPTED), [told("crashed", "RuntimeError")], Outcome.INTERRUPTED),
    ],
)
def test_the_cause_is_told_from_what_follows_of_it(ending, failures, outcome):
    assert outcome_of(ending, failures).outcome is outcome


def test_the_rank_that_fell_is_named():
    why = outcome_of(FELL, [PEER, OUT])
    assert why.told is not None and why.told.rank == 1


def test_of_ranks_that_end_for_the_same_want_of_memory_the_one_that_met_it_is_named():
    why = outcome_of(FELL, [ELSEWHERE, FINAL])
    assert why.told is FINAL
