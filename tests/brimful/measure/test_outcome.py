"""The cause of an end is found behind its consequences, in trials and in runs."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from brimful.errors import DoesNotFit
from brimful.measure.gather import RankFailure, Reported
from brimful.measure.outcome import (
    follows,
    is_final,
    is_for_memory,
    of_run,
    of_trial,
    waits_for_lost_batch,
)
from brimful.measure.supervisor import Ending, Stop
from brimful.values import Failure, Outcome
from brimful_inside import wire
from brimful_inside.probe.hooks.exceptions import Failures
from brimful_train.distributed.ranks import BROKEN, GIVES_UP, Ranks, Vote
from brimful_train.step.oom import SmallerFits
from tests.brimful.measure.helper import REPORT

CLEAN = Ending(exit_code=0, stop=None, oom_kills=0, peak_host_bytes=None, duration_s=1.0)
ENDED = replace(CLEAN, exit_code=1)


def failed(
    kind: str,
    type_: str = "RuntimeError",
    message: str = "it broke",
    rank: int = 0,
    caught: bool = False,
    step: int = 10,
    meaning: str = "",
):
    where = ("Traceback ...", "train.py:3 in main", "train", step, caught)
    return RankFailure(rank, Failure(kind, type_, message, *where, meaning=meaning))


def report(**changes):
    return replace(REPORT, **changes)


def cause(
    ending: Ending = CLEAN,
    reports=(REPORT,),
    failures=(),
    roles=("rank",),
    stderr="",
    probe_error=None,
):
    return of_trial(ending, Reported(tuple(reports), tuple(failures), roles), stderr, probe_error)


OUT_OF_MEMORY = failed("out_of_device_memory")
CAUGHT = failed("out_of_device_memory", caught=True)
RUNNING, DONE = report(ended="running"), report(ended="steps_done")
ALLOCATOR = (
    "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 4 bytes."
)


@pytest.mark.parametrize(
    ("trial", "outcome"),
    [
        ({}, Outcome.COMPLETED),
        ({"reports": [report(steps=0)]}, Outcome.NO_STEP),
        (
            {"ending": ENDED, "failures": [failed("crashed"), OUT_OF_MEMORY]},
            Outcome.OUT_OF_DEVICE_MEMORY,
        ),
        ({"failures": [CAUGHT]}, Outcome.COMPLETED),
        ({"ending": ENDED, "failures": [failed("crashed")]}, Outcome.CRASHED),
        (
            {"ending": ENDED, "reports": [DONE], "failures": [OUT_OF_MEMORY]},
            Outcome.OUT_OF_DEVICE_MEMORY,
        ),
        (
            {"ending": replace(CLEAN, exit_code=-9, oom_kills=1), "reports": [RUNNING]},
            Outcome.OUT_OF_HOST_MEMORY,
        ),
        ({"ending": replace(CLEAN, oom_kills=1)}, Outcome.COMPLETED),  # somebody else was killed
        ({"ending": ENDED, "reports": [RUNNING], "stderr": ALLOCATOR}, Outcome.OUT_OF_HOST_MEMORY),
        ({"stderr": "CUDA out of memory. Tried to allocate 2.00 GiB."}, Outcome.COMPLETED),
        ({"reports": [], "roles": ()}, Outcome.PROBE_NOT_LOADED),
        ({"reports": [], "roles": ("worker",)}, Outcome.PROBE_NOT_LOADED),
        (
            {"ending": replace(CLEAN, exit_code=None, stop=Stop.TIME_LIMIT), "reports": [RUNNING]},
            Outcome.TIMED_OUT,
        ),
        (
            {"ending": replace(CLEAN, exit_code=None, stop=Stop.TIME_LIMIT), "reports": [DONE]},
            Outcome.COMPLETED,
        ),
        (
            {
                "ending": replace(CLEAN, exit_code=None, stop=Stop.INTERRUPT),
                "failures": [OUT_OF_MEMORY],
            },
            Outcome.INTERRUPTED,
        ),
        (
            {"ending": replace(CLEAN, exit_code=None, stop=Stop.HOST_LIMIT)},
            Outcome.OUT_OF_HOST_MEMORY,
        ),
        (
            {"reports": [report(device="imaginary", ended="steps_done")], "failures": [CAUGHT]},
            Outcome.OUT_OF_DEVICE_MEMORY,
        ),
        (
            {"reports": [report(device="cuda:0", ended="steps_done")], "failures": [CAUGHT]},
            Outcome.COMPLETED,
        ),
    ],
)
def test_the_outcome_of_a_trial_is_what_its_processes_reported_before_what_was_seen_from_outside(
    trial, outcome
):
    assert cause(**trial).outcome is outcome


@pytest.mark.parametrize(
    ("given", "outcome", "words"),
    [
        (
            {"ending": ENDED, "reports": [DONE], "failures": [failed("crashed")]},
            Outcome.COMPLETED,  # it takes nothing from the steps that were measured
            "RuntimeError: it broke (train.py:3 in main)",
        ),
        (
            {
                "ending": replace(CLEAN, exit_code=None, stop=Stop.HEARTBEAT),
                "reports": [],
                "probe_error": "ImportError: x",
            },
            Outcome.PROBE_NOT_LOADED,
            "ImportError: x",
        ),
    ],
    ids=["a crash after the measured steps", "a probe that was not loaded"],
)
def test_what_else_was_seen_is_in_the_sentence(given, outcome, words):
    found = cause(**given)
    assert found.outcome is outcome and words in found.sentence


def test_that_the_script_found_a_loader_that_brimful_ended_at_its_end_is_not_worth_a_word():
    at_end = failed("crashed", "Ended", "")
    at_end = at_end._replace(failure=replace(at_end.failure, raised_by="ended"))
    result = cause(ENDED, [DONE], [at_end])
    assert (result.outcome, result.sentence) == (Outcome.COMPLETED, None)


NOT_FOR_MEMORY = (
    "killed, not by this machine's kernel for memory (its oom-kill counter did not move)"
)


@pytest.mark.parametrize(
    ("exit_code", "oom_kills", "stderr", "words"),
    [
        (-9, None, "", "killed, probably for memory"),
        (1, None, "exitcode  : -9 (pid: 7)", "killed, probably for memory: one of its ranks"),
        (-9, 0, "", NOT_FOR_MEMORY),
        (137, 0, "", NOT_FOR_MEMORY),
        (1, 0, "exitcode  : -9 (pid: 7)", f"{NOT_FOR_MEMORY}: one of its ranks"),
        (-11, None, "", "ended by signal 11"),
    ],
)
def test_only_signal_9_is_probably_for_memory_and_not_where_the_kernel_counted_no_kill(
    exit_code, oom_kills, stderr, words
):
    ending = replace(CLEAN, exit_code=exit_code, oom_kills=oom_kills)
    found = run_cause(ending, [], stderr=stderr)
    assert (found.outcome, found.sentence) == (Outcome.KILLED, words)


OUT = failed("out_of_device_memory", "torch.OutOfMemoryError", "CUDA out of memory", rank=1)
PEER = failed("crashed", "torch.distributed.DistBackendError", "Connection closed by peer")
OWN = failed("crashed", "KeyError", "'lr'")
FINAL = failed("crashed", "DoesNotFit", "no card holds it", rank=1, meaning=wire.DOES_NOT_FIT)
ELSEWHERE = failed("crashed", "DoesNotFit", "rank 1's", meaning=wire.DOES_NOT_FIT_ELSEWHERE)
RANK_FAILED = failed("crashed", "RankFailed", "Rank 1 failed.", meaning=wire.ANOTHER_RANK)
TEN_STEPS = report(steps=10)
ON_CARD = {"reports": [report(device="cuda:0", steps=10)]}


def run_cause(
    ending: Ending, failures, reports=(TEN_STEPS,), stderr="", by_signal=None, signals=()
):
    reported = Reported(tuple(reports), tuple(failures), ("rank",), signals=signals)
    return of_run(ending, reported, stderr, by_signal)


@pytest.mark.parametrize(
    ("ending", "failures", "more", "outcome"),
    [
        (CLEAN, [], {}, Outcome.COMPLETED),
        (CLEAN, [CAUGHT], {}, Outcome.COMPLETED),
        (ENDED, [PEER, OUT], {}, Outcome.OUT_OF_DEVICE_MEMORY),
        (ENDED, [OWN], {}, Outcome.CRASHED),
        (ENDED, [FINAL], {}, Outcome.OUT_OF_HOST_MEMORY),
        (ENDED, [FINAL], ON_CARD, Outcome.OUT_OF_DEVICE_MEMORY),
        (replace(ENDED, exit_code=3), [], {}, Outcome.CRASHED),
        (ENDED, [RANK_FAILED, OWN], {}, Outcome.CRASHED),
        (ENDED, [PEER], {}, Outcome.CRASHED),
        (replace(ENDED, oom_kills=1), [PEER], {}, Outcome.OUT_OF_HOST_MEMORY),
        (replace(ENDED, oom_kills=1), [OWN], {}, Outcome.CRASHED),
        (ENDED, [PEER], {"stderr": "exitcode  : -9 (pid: 7)"}, Outcome.KILLED),
        (
            ENDED,
            [failed("out_of_device_memory", caught=True, step=10)],
            {},
            Outcome.OUT_OF_DEVICE_MEMORY,
        ),
        (ENDED, [failed("out_of_device_memory", caught=True, step=3)], {}, Outcome.CRASHED),
        (
            ENDED,
            [],
            {"stderr": "torch.OutOfMemoryError: CUDA out of memory."},
            Outcome.OUT_OF_DEVICE_MEMORY,
        ),
        (replace(ENDED, exit_code=-9), [], {}, Outcome.KILLED),
        (replace(ENDED, exit_code=-11), [], {}, Outcome.KILLED),
        (
            replace(ENDED, stop=Stop.HOST_LIMIT, exit_code=None),
            [OWN],
            {},
            Outcome.OUT_OF_HOST_MEMORY,
        ),
        (CLEAN, [], {"by_signal": Outcome.TERMINATED}, Outcome.TERMINATED),
        (ENDED, [failed("crashed")], {"by_signal": Outcome.INTERRUPTED}, Outcome.INTERRUPTED),
    ],
)
def test_the_outcome_of_a_run_is_its_exit_code_before_what_its_ranks_reported(
    ending, failures, more, outcome
):
    assert run_cause(ending, failures, **more).outcome is outcome


DEAD = "DataLoader worker (pid 7) is killed by signal: Killed. "
RESET = "[Errno 104] Connection reset by peer, in multiprocessing/connection.py"


def of_worker(number: int, words: str = DEAD) -> RankFailure:
    rank, failure = failed("crashed", "RuntimeError", words)
    return RankFailure(rank, replace(failure, worker_signal=number))


ROOT_CAUSE = """
Failures:
  exitcode  : -15 (pid: 8)
Root Cause (first observed failure):
  exitcode  : {} (pid: 7)
"""
TOLD = failed("crashed", "brimful.errors.Terminated", "Stopped.", meaning="terminated")
EXIT_143 = replace(ENDED, exit_code=143)
LAUNCHER_TOLD = "api.SignalException: Process 7 got signal: 15"


@pytest.mark.parametrize(
    ("ending", "failures", "more", "outcome"),
    [
        (EXIT_143, [], {}, Outcome.TERMINATED),
        (EXIT_143, [OWN], {}, Outcome.CRASHED),
        (replace(ENDED, exit_code=129), [], {}, Outcome.TERMINATED),
        (replace(ENDED, exit_code=138), [], {}, Outcome.TERMINATED),  # SIGUSR1, of a cluster
        (replace(ENDED, exit_code=130), [], {}, Outcome.INTERRUPTED),
        (replace(ENDED, exit_code=-15), [], {}, Outcome.TERMINATED),
        (replace(ENDED, exit_code=-2), [], {}, Outcome.INTERRUPTED),
        (replace(ENDED, exit_code=139), [], {}, Outcome.KILLED),
        (replace(ENDED, exit_code=255), [], {}, Outcome.CRASHED),
        (ENDED, [TOLD], {}, Outcome.TERMINATED),
        (ENDED, [TOLD, OWN], {}, Outcome.CRASHED),
        (ENDED, [TOLD, PEER], {}, Outcome.TERMINATED),
        (ENDED, [of_worker(9)], {}, Outcome.KILLED),
        (ENDED, [of_worker(9, RESET)], {}, Outcome.KILLED),
        (ENDED, [of_worker(9, "DataLoader worker (pid(s) 7) exited")], {}, Outcome.KILLED),
        (ENDED, [of_worker(9, "'lr'")], {}, Outcome.CRASHED),
        (ENDED, [of_worker(15)], {}, Outcome.TERMINATED),
        (replace(ENDED, oom_kills=1), [of_worker(9)], {}, Outcome.OUT_OF_HOST_MEMORY),
        (ENDED, [], {"stderr": ROOT_CAUSE.format(143)}, Outcome.TERMINATED),
        (ENDED, [], {"stderr": ROOT_CAUSE.format(-9)}, Outcome.KILLED),
        (ENDED, [], {"stderr": ROOT_CAUSE.format(1)}, Outcome.CRASHED),
        (ENDED, [], {"stderr": LAUNCHER_TOLD}, Outcome.TERMINATED),
        (ENDED, [], {"stderr": "returned non-zero exit status 143."}, Outcome.TERMINATED),
        (ENDED, [PEER], {"stderr": "terminated with signal SIGTERM"}, Outcome.TERMINATED),
        (ENDED, [], {"stderr": "died with <Signals.SIGTERM: 15>."}, Outcome.TERMINATED),
        (ENDED, [OWN], {"stderr": LAUNCHER_TOLD}, Outcome.CRASHED),
        (CLEAN, [], {"stderr": ROOT_CAUSE.format(-9)}, Outcome.COMPLETED),  # torchrun began anew
        (CLEAN, [], {"signals": (17, 15, 17)}, Outcome.TERMINATED),  # as Lightning ends
        (ENDED, [], {"signals": (2,)}, Outcome.INTERRUPTED),
        (ENDED, [OWN], {"signals": (15,)}, Outcome.CRASHED),
        (CLEAN, [], {"signals": (10, 17)}, Outcome.COMPLETED),  # a checkpoint on SIGUSR1
    ],
)
def test_a_signal_to_any_process_of_a_run_means_the_same_unless_the_script_raised_its_own_error(
    ending, failures, more, outcome
):
    assert run_cause(ending, failures, **more).outcome is outcome


@pytest.mark.parametrize(
    ("ending", "more", "outcome"),
    [
        (EXIT_143, {}, Outcome.TERMINATED),
        (EXIT_143, {"reports": [DONE]}, Outcome.COMPLETED),
        (replace(ENDED, exit_code=130), {}, Outcome.INTERRUPTED),
        (ENDED, {"failures": [of_worker(9)]}, Outcome.KILLED),
        (
            replace(ENDED, exit_code=None, stop=Stop.TIME_LIMIT),
            {"stderr": LAUNCHER_TOLD},  # by brimful
            Outcome.TIMED_OUT,
        ),
    ],
)
def test_a_trial_that_was_told_to_end_from_outside_is_no_failure(ending, more, outcome):
    assert cause(ending, **{"reports": [RUNNING], **more}).outcome is outcome


@pytest.mark.parametrize(("failures", "named"), [([PEER, OUT], OUT), ([ELSEWHERE, FINAL], FINAL)])
def test_the_rank_that_failed_first_is_named(failures, named):
    assert run_cause(ENDED, failures).failed is named


def failure_of(error: BaseException) -> Failure:
    reported: list[Failure] = []
    Failures(reported.append, lambda: ("train", 4, False)).left_the_script(error)
    return reported[0]


@pytest.mark.parametrize(
    ("error", "final", "for_memory"),
    [
        (DoesNotFit("CUDA out of memory"), True, True),
        (DoesNotFit("the cards do not hold it"), True, True),
        (SmallerFits("out of memory"), False, True),
        (KeyError("lr"), False, False),
    ],
)
def test_a_rank_s_own_error_is_final_where_no_micro_batch_fits_and_follows_from_no_other(
    error, final, for_memory
):
    failure = failure_of(error)
    assert (is_final(failure), is_for_memory(failure), follows(failure)) == (
        final,
        for_memory,
        False,
    )


@pytest.mark.parametrize("status", [GIVES_UP, BROKEN])
def test_an_error_about_another_rank_follows(status):
    votes = SimpleNamespace(_exchange=lambda _: [Vote(), Vote(status)])
    with pytest.raises(Exception) as raised:
        Ranks.meet(votes, Vote())  # type: ignore[arg-type]
    assert follows(failure_of(raised.value))


BUS_ERROR = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.\n"
FULL = failed("full_shared_memory", message="killed by signal: Bus error")
LOST = failed("crashed", message="DataLoader worker (pid(s) 7) exited unexpectedly")
LOCK = RankFailure(
    0,
    Failure(
        *("full_disk", "OSError", "[Errno 28] No space left on device"),
        *("in SemLock", None, "train", 1, False),
    ),
)
DISK = failed("full_disk", "OSError", "[Errno 28] No space left on device: '/tmp/x'")
AGAIN = "BlockingIOError", "[Errno 11] Resource temporarily unavailable"
FORK = RankFailure(0, Failure("no_processes", *AGAIN, "in fork_exec", None, "train", 1, False))
FULL_SHM = Outcome.FULL_SHARED_MEMORY


@pytest.mark.parametrize("of", ["trial", "run"])
@pytest.mark.parametrize(
    ("failures", "stderr", "mount", "outcome"),
    [
        ([FULL], "", (64 << 20, 64 << 20), FULL_SHM),
        ([LOST], BUS_ERROR, (64 << 20, 64 << 20), FULL_SHM),
        ([], BUS_ERROR, (64 << 30, 64 << 30), FULL_SHM),
        ([LOCK], "", (64 << 20, 64 << 20), FULL_SHM),
        ([LOCK], "", (64 << 30, 1 << 20), FULL_SHM),
        ([LOCK], "", (64 << 30, 32 << 30), Outcome.FULL_DISK),
        ([DISK], "", (64 << 20, 0), Outcome.FULL_DISK),  # of a checkpoint
        ([failed("no_processes")], "", (0, 0), Outcome.NO_PROCESSES),
        ([FORK], "", (0, 0), Outcome.NO_PROCESSES),
        ([failed("no_processes", *AGAIN)], "", (0, 0), Outcome.CRASHED),  # a lock
        ([], f"  os.fork()\n{': '.join(AGAIN)}\n", (0, 0), Outcome.NO_PROCESSES),
        ([], f"  fcntl.flock(file, LOCK_NB)\n{': '.join(AGAIN)}\n", (0, 0), Outcome.CRASHED),
        ([LOST], "OSError: [Errno 24] Too many open files", (0, 0), Outcome.NO_FILE_DESCRIPTORS),
        ([failed("full_address_space")], "", (0, 0), Outcome.FULL_ADDRESS_SPACE),
        ([failed("crashed")], BUS_ERROR, (64 << 20, 0), Outcome.CRASHED),
    ],
)
def test_what_else_than_memory_has_run_out_is_told_by_its_words_and_full_shared_memory_by_its_mount(
    monkeypatch, of, failures, stderr, mount, outcome
):
    monkeypatch.setattr("brimful.measure.host.shm_bytes", lambda: mount[0])
    monkeypatch.setattr("brimful.measure.host.shm_free_bytes", lambda: mount[1])
    reported = Reported((RUNNING,), tuple(failures), ("rank",))
    found = (of_trial if of == "trial" else of_run)(ENDED, reported, stderr)
    assert found.outcome is outcome
    if outcome is FULL_SHM and mount[0] == 64 << 20:
        assert found.sentence is not None and "it has 64.0 MiB" in found.sentence


def test_a_script_that_waits_for_a_batch_that_nobody_can_hand_over_is_found(tmp_path):
    words = "RuntimeError: unable to write to file </torch_1_2>: No space left on device (28)\n"
    (tmp_path / "stderr.txt").write_text(words)
    assert not waits_for_lost_batch(tmp_path)  # it has only just said so
    os.utime(tmp_path / "stderr.txt", (1, 1))
    assert waits_for_lost_batch(tmp_path)
    (tmp_path / "latest-progress-1.jsonl").write_text("")
    assert not waits_for_lost_batch(tmp_path)  # a step was made since
    (tmp_path / "latest-progress-1.jsonl").unlink()
    (tmp_path / "stderr.txt").write_text("another error")
    os.utime(tmp_path / "stderr.txt", (1, 1))
    assert not waits_for_lost_batch(tmp_path)
