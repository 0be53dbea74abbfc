"""A rank that the probe could not enter is not left to train on unseen."""

import os
import time

from brimful.measure.launch import _rank_could_not_be_entered

RANK = '{"event": "process_started", "role": "rank"}\n'
WORKER = '{"event": "process_started", "role": "worker"}\n'


def test_a_rank_with_a_door_file_is_blind(tmp_path):
    (tmp_path / "wire-7.jsonl").write_text(RANK)
    assert not _rank_could_not_be_entered(tmp_path)
    (tmp_path / "probe-error-7.txt").write_text("ImportError")
    assert _rank_could_not_be_entered(tmp_path)


def test_a_process_that_could_not_even_say_hello_is_blind_when_no_rank_says_hello_for_a_while(tmp_path):
    closed = tmp_path / "probe-error-8.txt"
    closed.write_text("SyntaxError")
    assert not _rank_could_not_be_entered(tmp_path)
    os.utime(closed, (time.time() - 60, time.time() - 60))
    assert _rank_could_not_be_entered(tmp_path)
    (tmp_path / "wire-9.jsonl").write_text(RANK)  # the first one was a helper, and gone
    assert not _rank_could_not_be_entered(tmp_path)


def test_a_worker_with_a_door_file_ends_nothing(tmp_path):
    (tmp_path / "wire-9.jsonl").write_text(WORKER)
    (tmp_path / "probe-error-9.txt").write_text("ImportError")
    assert not _rank_could_not_be_entered(tmp_path)
