import errno
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brimful import codec, record, values
from brimful.errors import DiskFull, NoSuchRecord, OtherSchema, RecordUnreadable, UsageError
from tests import strategies

COMMAND = values.Command(("python", "examples/captcha/train.py", "--batch-size", "{batch_size}"))
slow_to_draw = settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))


def opened(record_id="20261120-054501-tune-captcha"):
    return values.Opened(
        codec.SCHEMA, record_id, "tune", ("brimful", "tune"), COMMAND, None, None, 1.0
    )


def note(text):
    return values.Diagnostic("note", text, "explanation", "suggestion")


def sample(number=1):
    return values.TrialResult(
        trial=values.Trial(
            COMMAND, {"batch_size": number}, values.Device("cpu", "cpu"), values.TrialKind.SPEED
        ),
        outcome=values.Outcome.COMPLETED,
        samples_per_step=number,
        duration_s=1.0,
        folder=f"trial-{number:03d}",
    )


def written(home, *entries, record_id="20261120-054501-tune-captcha"):
    """The folder of a record with these entries."""
    with closing(record.RecordWriter.create(home, opened(record_id))) as writer:
        for entry in entries:
            writer.append(entry)
    return writer.folder


def test_of_several_plans_the_last_counts(tmp_path):
    plan = values.Plan(values.Objective.THROUGHPUT, (), "python a.py", True, 3, 0)
    assert record.read_record(written(tmp_path, plan, replace(plan, trials=9))).plan.trials == 9


@slow_to_draw
@given(strategies.opened, st.lists(strategies.entries, max_size=4), st.data())
def test_any_record_cut_off_anywhere_keeps_its_whole_lines(tmp_path_factory, first, rest, data):
    lines = [codec.encode_entry(entry) for entry in (first, *rest)]
    whole = b"".join(lines)
    end = data.draw(st.integers(0, len(whole)))
    folder = tmp_path_factory.mktemp("record")
    (folder / record.FILE_NAME).write_bytes(whole[:end])
    kept = whole[:end].count(b"\n")
    if not kept:
        with pytest.raises(RecordUnreadable, match="opening"):
            record.read_record(folder)
        return
    expected = record.replay(
        [codec.decode_entry(line) for line in lines[:kept]],
        folder,
        torn=whole[end - 1 : end] != b"\n",
    )
    assert record.read_record(folder) == expected


def test_a_damaged_line_in_the_middle_is_reported_with_its_number(tmp_path):
    path = written(tmp_path, sample(1), sample(2)) / record.FILE_NAME
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:40]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordUnreadable, match="line 2 of 3"):
        record.read_record(path)


def test_a_record_of_a_newer_brimful_is_not_called_damaged(tmp_path):
    line = codec.encode_entry(opened()).replace(b'"schema":%d' % codec.SCHEMA, b'"schema":7')
    (tmp_path / record.FILE_NAME).write_bytes(line)
    with pytest.raises(OtherSchema, match="schema 7"):
        record.read_record(tmp_path)


def test_two_records_of_the_same_second_get_folders_of_their_own(tmp_path):
    ids = [record.read_record(written(tmp_path)).opened.record_id for _ in range(12)]
    assert len(set(ids)) == 12
    assert [path.name for path in record.list_records(tmp_path)] == ids


def test_a_record_is_found_by_path_file_id_beginning_end_or_latest(tmp_path):
    first = written(tmp_path)
    written(tmp_path, record_id="20261121-010203-audit-chat")
    for name in (
        first,
        first / record.FILE_NAME,
        "20261120-054501-tune-captcha",
        "20261120",
        "captcha",
    ):
        assert record.read_record(name, tmp_path).folder == str(first)
    assert record.read_record("latest", tmp_path).opened.record_id == "20261121-010203-audit-chat"


def test_an_unknown_record_is_answered_with_those_there_are_and_of_two_that_fit_none_is_guessed(
    tmp_path,
):
    written(tmp_path)
    with pytest.raises(NoSuchRecord) as caught:
        record.read_record("20261120-tune-captcha", tmp_path)
    assert "20261120-054501-tune-captcha" in caught.value.explanation
    with pytest.raises(NoSuchRecord, match="no record"):
        record.read_record("x", tmp_path / "nowhere")
    written(tmp_path)
    with pytest.raises(NoSuchRecord, match="fits 2 records"):
        record.read_record("20261120", tmp_path)


@pytest.mark.parametrize("partial", [True, False])
def test_a_full_disk_keeps_the_entries_before_it_whole(tmp_path, monkeypatch, partial):
    writer = record.RecordWriter.create(tmp_path, opened())
    writer.append(sample(1))
    real = os.write

    def full(descriptor, data):
        if partial:
            return real(descriptor, data[:25])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record.os, "write", full)
    with pytest.raises(DiskFull) as caught:
        writer.append(sample(2))
    monkeypatch.undo()
    assert "2 entries" in caught.value.kept
    writer.append(sample(3))  # somebody made room
    assert [one.samples_per_step for one in record.read_record(writer.folder).trials] == [1, 3]


def test_each_entry_is_on_the_disk_before_the_next_thing_happens(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        record.os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size)
    )
    writer = record.RecordWriter.create(tmp_path, opened())
    writer.append(note("a"))
    path = writer.folder / record.FILE_NAME
    assert len(synced) == 2 and synced[-1] == path.stat().st_size


def test_records_keep_themselves_out_of_the_users_repository_but_hide_no_folder_of_the_users_own(
    tmp_path,
):
    written(tmp_path / ".brimful")
    assert (tmp_path / ".brimful" / ".gitignore").read_text() == "*\n"
    written(tmp_path)
    assert not (tmp_path / ".gitignore").exists()


def test_planted_files_are_no_records_and_nothing_is_written_through_them(tmp_path):
    home = tmp_path / ".brimful"
    for name, plant in {
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "link": lambda path: path.symlink_to(tmp_path / "target"),
    }.items():
        (home / f"20261128-120000-run-{name}").mkdir(parents=True)
        plant(home / f"20261128-120000-run-{name}" / record.FILE_NAME)
    (tmp_path / "target").write_text("{}")
    (home / ".gitignore").symlink_to(tmp_path / "new")
    assert [path.name[-4:] for path in record.list_records(home)] == ["link"]
    with pytest.raises(RecordUnreadable, match="it is a link"):
        record.read_record("latest", home)
    folder = written(home)
    assert not (tmp_path / "new").exists() and (tmp_path / "target").read_text() == "{}"
    assert (folder / record.FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_home_that_cannot_be_read_is_said_and_not_called_empty(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be read: Not a directory"):
        record.read_record("latest", tmp_path / "file")
    monkeypatch.setattr(os, "listdir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        record.read_record("latest", tmp_path)


def test_a_home_that_cannot_be_written_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="No record can be kept"):
        record.RecordWriter.create(tmp_path / "file" / "home", opened())


def test_the_home_is_the_option_then_the_environment_then_here(monkeypatch, tmp_path):
    monkeypatch.delenv("BRIMFUL_HOME", raising=False)
    assert record.record_home() == Path(".brimful")
    monkeypatch.setenv("BRIMFUL_HOME", str(tmp_path))
    assert record.record_home() == tmp_path
    assert record.record_home("elsewhere") == Path("elsewhere")
    assert record.list_records(tmp_path / "nowhere") == ()


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("python", "examples/captcha/train.py"), "captcha"),
        (("python", "/x/My Project/src/train.py"), "my-project"),
        (("torchrun", "--nproc", "2", "finetune_llm.py"), "finetune-llm"),
        (("bash", "run_all.sh"), "run-all"),
        (("mytrainer", "--bs", "3"), ""),
    ],
)
def test_an_id_says_when_what_and_which_script(argv, name):
    made = record.new_record_id("tune", values.Command(argv), unix_s=1795153501)
    assert made == "-".join(part for part in ("20261120-054501", "tune", name) if part)
