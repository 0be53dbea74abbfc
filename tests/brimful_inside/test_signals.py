"""What a signal means, and how a loader's workers survive one."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from brimful_inside import signals


@pytest.mark.parametrize(
    ("exit_code", "number"),
    [(-15, 15), (143, 15), (130, 2), (137, 9), (0, 0), (1, 0), (127, 0), (255, 0), (None, 0)],
)
def test_an_exit_code_tells_of_a_signal(exit_code, number):
    assert signals.number_of(exit_code) == number


def test_signals_that_are_held_back_come_afterwards_once():
    came = []
    before = signal.signal(signal.SIGCHLD, lambda *_: came.append("handled"))
    try:
        with signals.held_back([signal.SIGCHLD]):
            for _ in range(2):
                signal.raise_signal(signal.SIGCHLD)
            assert came == []
        assert came == ["handled"]
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.handled_by(pytest.fail, [signal.SIGHUP]):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("error", "number"), [(ConnectionResetError(), 9), (EOFError(), 9), (ValueError(), 0)]
)
def test_a_worker_that_shows_its_end_late_explains_a_broken_connection_alone(
    monkeypatch, error, number
):
    ended, polls = [], []

    def children():
        polls.append(None)
        if len(polls) == 4:  # the system shows the end of the process now
            ended.append(9)
        return []

    monkeypatch.setattr(signals, "_ended_by", ended)
    monkeypatch.setattr(signals.multiprocessing, "active_children", children)
    assert signals.signal_of_a_worker(error) == number


def test_a_forked_child_notes_no_signals_for_its_parent(tmp_path):
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    descriptor = signals.note_in(str(tmp_path / "signals"))
    try:
        signal.raise_signal(signal.SIGUSR1)
        if (pid := os.fork()) == 0:
            signals.note_no_more(descriptor)
            signal.raise_signal(signal.SIGUSR1)
            os._exit(0)
        os.waitpid(pid, 0)
        assert tuple((tmp_path / "signals").read_bytes()).count(signal.SIGUSR1) == 1
    finally:
        signals.note_no_more(descriptor)
        signal.signal(signal.SIGUSR1, before)
        os.close(descriptor)


LOADER = """
    import os, signal, sys, time
    from torch.utils.data import DataLoader, Dataset
    from brimful_inside.signals import ignore_in_worker, kill_instead

    class Data(Dataset):
        def __len__(self):
            return 1000
        def __getitem__(self, index):
            if index > 3:
                time.sleep(1000)
            return index

    if __name__ == "__main__":
        told = []
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
        how = sys.argv[1]
        loader = DataLoader(
            Data(), 2, num_workers=1, multiprocessing_context=how, worker_init_fn=ignore_in_worker
        )
        batches = iter(loader)
        kill_instead(batches)
        next(batches)
        worker = batches._workers[0]
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM):
            os.kill(worker.pid, number)
        time.sleep(0.5)
        assert worker.is_alive() and told, (worker.exitcode, told)
        raise KeyError("the script's own")
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_worker_ignores_signals_tells_its_training_and_still_ends_with_it(tmp_path, how):
    """The worker is in a sample that takes for ever: to join it would hang."""
    (tmp_path / "script.py").write_text(textwrap.dedent(LOADER))
    began_s = time.monotonic()
    argv = [sys.executable, "script.py", how]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, timeout=120, text=True)
    assert done.returncode == 1 and done.stderr.endswith('KeyError: "the script\'s own"\n')
    assert "is killed by signal" not in done.stderr and time.monotonic() - began_s < 100
