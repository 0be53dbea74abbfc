"""Files in which processes report: read as they grow, and one for all processes that have ended."""

import os
import resource
import subprocess
import sys
from dataclasses import replace

import pytest

from brimful.measure import gather, wire_files
from brimful.measure.wire_files import WireFiles, fold_ended
from brimful_inside.wire import Failure, ProcessStarted, Progress, Writer
from tests.brimful.measure.helper import REPORT

GONE = 1 << 23  # above the largest number that Linux gives a process


class Ended:
    """The wire file of a process that has ended, as `events` and `latest` ones were written."""

    def __init__(self, folder, pid, *events, latest=(), role="rank", rank=0):
        self.writer = Writer(str(folder), pid)
        for event in (ProcessStarted(pid, role, rank, ["train.py"]), *events):
            self.writer.write(event)
        for event in latest:
            self.writer.replace(event)
        os.close(self.writer._descriptor)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_of_processes_that_ended_become_one_and_say_what_they_said(tmp_path):
    failure = Failure("crashed", "ValueError", "x", "", None, "train", 3, False)
    running = replace(REPORT, ended="running", steps=2)
    Ended(tmp_path, GONE, latest=[running, Progress("train", 7, 1.0)])
    Ended(tmp_path, GONE + 1, replace(REPORT, rank=1, ended="script_ended", steps=5), rank=1)
    Ended(tmp_path, GONE + 2, failure, role="worker", rank=1)
    before = gather.of_run(tmp_path)
    fold_ended(tmp_path)
    assert names(tmp_path) == ["wire-ended.jsonl"]
    after = gather.of_run(tmp_path)
    assert sorted(before.roles) == sorted(after.roles) == ["rank", "rank", "worker"]
    assert (after.reports, after.failures) == (before.reports, before.failures)
    assert [report.steps for report in after.reports] == [7, 5]


def test_a_process_that_goes_on_keeps_its_file_whatever_its_number_is_here(tmp_path):
    own = Writer(str(tmp_path))
    own.write(ProcessStarted(os.getpid(), "rank", 0, []))
    in_a_container = Writer(str(tmp_path), GONE)
    in_a_container.write(ProcessStarted(GONE, "rank", 0, []))
    both = names(tmp_path)
    fold_ended(tmp_path)
    assert names(tmp_path) == both
    os.close(in_a_container._descriptor)
    fold_ended(tmp_path)
    assert names(tmp_path) == sorted([f"wire-{os.getpid()}.jsonl", "wire-ended.jsonl"])


def test_on_a_full_disk_every_file_stays_and_nothing_is_half_written(tmp_path, monkeypatch):
    Ended(tmp_path, GONE)
    fold_ended(tmp_path)
    text = (tmp_path / "wire-ended.jsonl").read_bytes()
    Ended(tmp_path, GONE + 1)
    write = os.write

    def full(descriptor, data):
        if len(data) < 40:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:-39])

    monkeypatch.setattr(wire_files.os, "write", full)
    fold_ended(tmp_path)
    assert (tmp_path / "wire-ended.jsonl").read_bytes() == text
    assert f"wire-{GONE + 1}.jsonl" in names(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/etc/hostname", path)])
def test_what_is_no_regular_file_is_neither_waited_for_nor_followed_nor_removed(tmp_path, make):
    make(tmp_path / f"wire-{GONE}.jsonl")
    make(tmp_path / "wire-ended.jsonl")
    Ended(tmp_path, GONE + 1)
    before = names(tmp_path)
    WireFiles(tmp_path).look()
    assert names(tmp_path) == before


def test_only_what_is_new_is_read_and_a_line_counts_once_it_is_whole(tmp_path):
    files, writer = WireFiles(tmp_path), Writer(str(tmp_path))
    path = tmp_path / f"wire-{os.getpid()}.jsonl"

    def steps():
        files.look()
        return [progress.steps for progress in files.latest(Progress).values()]

    writer.write(Progress("train", 1, 1.0))
    assert steps() == [1]
    line = path.read_bytes().replace(b'"steps": 1', b'"steps": 2')
    path.write_bytes(b"#" * len(line) + line[:-1])
    assert steps() == [1], "neither what was read before nor a line that is being written"
    with open(path, "ab") as file:
        file.write(b"\n")
    assert steps() == [2]


def test_of_a_rank_that_was_started_again_the_one_that_goes_on_counts(tmp_path):
    files = WireFiles(tmp_path)
    Ended(tmp_path, GONE, latest=[Progress("train", 50, 1.0)])
    files.look()
    assert [p.steps for p in files.latest(Progress).values()] == [50], "the last one that ended"
    writer = Writer(str(tmp_path))
    writer.write(ProcessStarted(os.getpid(), "rank", 0, []))
    writer.replace(Progress("train", 20, 2.0))
    files.look()
    assert [p.steps for p in files.latest(Progress).values()] == [20]


@pytest.mark.parametrize("folds", [True, False])
def test_a_look_after_ten_thousand_workers_reads_no_more_than_after_ten(
    tmp_path, monkeypatch, folds
):
    opened, opener = [], wire_files._open_regular

    def counted(path, flags):
        opened.append(path)
        return opener(path, flags)

    monkeypatch.setattr(wire_files, "_open_regular", counted)
    text = Ended(tmp_path, GONE) and (tmp_path / f"wire-{GONE}.jsonl").read_bytes()
    for count in (10, 10_000):
        (tmp_path / "wire-ended.jsonl").write_bytes(text * count)
        (tmp_path / "wire-1.jsonl").write_bytes(text)
        files = WireFiles(tmp_path, folds)
        files.look()
        assert opened
        opened.clear()
        files.look()
        assert opened == []


def test_a_worker_locks_its_file_until_it_ends(tmp_path):
    code = "import sys; from brimful_inside.wire import Writer, ProcessStarted as P; import time\n"
    code += f"w = Writer(sys.argv[1], {GONE}); w.write(P({GONE}, 'worker', 0, [])); print(1)\n"
    code += "sys.stdout.flush(); time.sleep(60)"
    words = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        fold_ended(tmp_path)
        assert names(tmp_path) == [f"wire-{GONE}.jsonl"]
        process.kill()
    fold_ended(tmp_path)
    assert names(tmp_path) == ["wire-ended.jsonl"]


def test_thousands_of_files_at_once_are_folded_without_as_many_open_files(tmp_path):
    text = b'{"event": "process_started"}\n'
    for pid in range(3000):
        (tmp_path / f"wire-{GONE + pid}.jsonl").write_bytes(text)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        fold_ended(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (tmp_path / "wire-ended.jsonl").read_bytes() == text * 3000
