"""What a verb leaves behind however it ends: the record is closed with the exit code, and what was
learned is in it.
"""

import errno
import io
import os
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brimful import audit, predict, tune
from brimful import record as records
from brimful.command import parse
from brimful.errors import DiskFull, Terminated
from brimful.record import list_records, read_record
from brimful.show.console import make_console, show_record
from brimful.show.html import render_page
from brimful.trials.session import Options, opened
from brimful.values import Outcome
from brimful.watcher import Watcher
from tests.brimful.verbs.test_run import Notebook
from tests.brimful.verbs.world import World, work


def kept(home):
    return read_record("latest", home)


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143), (RuntimeError("?"), 1)]
)
def test_whatever_ends_a_verb_closes_its_record(tmp_path, error, code):
    world = World()

    def launch(*_, **__):
        raise error

    world.launch = launch
    with pytest.raises(BaseException) as caught:
        work(world, audit, ("my-train", "--batch-size", "8"), device="cpu", home=tmp_path)
    if code in (130, 143):  # before there is a record, nothing says so
        assert "the record is kept in" in caught.value.explanation
    assert kept(tmp_path).closed.exit_code == code


def test_each_trial_gets_what_those_before_it_saw_of_the_samples(tmp_path):
    class Scans(World):
        def launch(self, trial, folder, record_folder, heartbeat=None, scans=(), imports=None):
            got.append([str(path.relative_to(record_folder)) for path in scans])
            sample = super().launch(trial, folder, record_folder, heartbeat)
            if len(got) in (1, 3):
                (folder / "scans-5.jsonl").touch()
            return sample

    for _ in range(2):  # the second record has nothing of the first
        got: list[list[str]] = []
        work(Scans(), predict, ("my-train", "--batch-size", "4"), gpu_memory="4GiB", home=tmp_path)
        first, third = "trial-001/scans-5.jsonl", "trial-003/scans-5.jsonl"
        assert len(got) > 3 and got == [[], [first], [first], *[[first, third]] * (len(got) - 3)]


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(room=st.integers(0, 40_000))
def test_a_disk_that_fills_up_at_any_byte_of_the_record_leaves_whole_lines(tmp_path_factory, room):
    """The record's own writes fail once `room` bytes are used up, as on a small disk."""
    home = tmp_path_factory.mktemp("home")
    left = [room]
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        written = real(descriptor, data[: max(0, left[0])])
        left[0] -= written
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records.os, "write", write)
        try:
            work(World(), tune, device="cpu", budget="1GiB", home=home)
            return
        except DiskFull as error:
            assert "Kept" in error.explanation
    data = (list_records(home)[-1] / "record.jsonl").read_bytes()
    assert data == b"" or data.endswith(b"\n"), "no torn line is left behind"
    if data:
        read_record("latest", home)


def cut_off(whole_record, share):
    folder, data = whole_record
    opening = data.index(b"\n") + 1
    (folder / "record.jsonl").write_bytes(data[: opening + int(share * (len(data) - opening))])
    return read_record(folder)


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0, 1))
def test_a_record_cut_off_at_any_byte_can_be_shown(whole_record, share):
    stream = io.StringIO()
    show_record(make_console(stream), cut_off(whole_record, share))
    assert stream.getvalue().strip()


@pytest.mark.parametrize("share", [0.3, 0.999])
def test_a_record_cut_off_gives_a_page(whole_record, share):
    assert "<html" in render_page(cut_off(whole_record, share))


@pytest.fixture(scope="module")
def whole_record(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    record = work(
        World(), tune, ("my-train", "--batch-size", "24"), device="cpu", budget="1GiB", home=home
    )
    path = list_records(home)[-1]
    assert record.plan is not None
    return path, (path / "record.jsonl").read_bytes()


def test_a_verb_returns_what_its_record_holds(tmp_path):
    record = work(
        World(), predict, ("my-train", "--batch-size", "4"), gpu_memory="4GiB", home=tmp_path
    )
    assert kept(tmp_path).prediction == record.prediction
    assert record.opened.command.argv[-1] == "{batch_size}"
    assert record.opened.command.found_flags == {"batch_size": "--batch-size"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("8", ["batch_size: brimful sets the value behind --bs in your command (8)"]),
        ("{batch_size}", []),
    ],
)
def test_the_user_is_shown_which_flag_was_taken_for_the_batch_size(tmp_path, value, shown):
    user = Notebook()
    options = Options(home=tmp_path, watcher=user)
    with opened("audit", parse(("my-train", "--bs", value)), None, options):
        assert user.messages == shown


class Forking(World):
    """A world whose trials fail in processes that were forked with their imports."""

    def __init__(self, fails_alone: bool = False):
        super().__init__()
        self.fails_alone, self.forked = fails_alone, []

    def launch(self, trial, folder, record_folder, heartbeat=None, scans=(), imports=None):
        shares = imports is not None and imports._used
        self.forked.append(shares)
        if imports is not None:
            imports.forked = shares
        result = super().launch(trial, folder, record_folder, heartbeat)
        first_or_forked = len(self.forked) <= 2 if self.fails_alone else shares
        return replace(result, outcome=Outcome.CRASHED) if first_or_forked else result


def test_where_only_the_forked_process_of_a_trial_fails_all_start_as_ever(tmp_path):
    world = Forking()
    work(world, predict, ("my-train", "--batch-size", "4"), gpu_memory="4GiB", home=tmp_path)
    assert world.forked[:2] == [True, False] and not any(world.forked[1:])
    record = kept(tmp_path)
    assert len(record.trials) == len(world.forked) - 1
    assert all(trial.outcome is Outcome.COMPLETED for trial in record.trials)


def test_a_trial_that_starts_again_is_timed_anew(tmp_path, monkeypatch):
    """What is said of its time is what its result says."""
    started: list[int] = []
    monkeypatch.setattr(
        Watcher, "trial_started", lambda _, trial, number, of: started.append(number)
    )
    work(Forking(), predict, ("my-train", "--batch-size", "4"), gpu_memory="4GiB", home=tmp_path)
    assert started[:2] == [1, 1] and started.count(2) <= 1


def test_a_script_that_fails_by_itself_is_run_without_shared_imports_once(tmp_path):
    world = Forking(fails_alone=True)
    work(world, predict, ("my-train", "--batch-size", "4"), gpu_memory="4GiB", home=tmp_path)
    assert world.forked[:2] == [True, False] and all(world.forked[2:])
    assert kept(tmp_path).trials[0].outcome is Outcome.CRASHED


def test_the_one_trial_of_an_audit_has_nobody_to_share_imports_with(tmp_path):
    world = Forking()
    work(world, audit, ("my-train", "--batch-size", "4"), gpu="t4", home=tmp_path)
    assert world.forked == [False]
