"""What a training logs, and that a full disk does not end it."""

import errno
import io
import json
import types
from pathlib import Path
from unittest import mock

import pytest

from brimful.measure.gather import of_engine
from brimful_train import BatchingConfig, fit
from brimful_train.reporting.peak_memory import Peak
from brimful_train.reporting.progress_log import Log, ProgressLog, Standing, write_json
from tests.brimful_train.ledger import ledger_config, ledger_task

NO_ROOM = Path("/dev/full")  # writing it fails for want of room
pytestmark = pytest.mark.skipif(not NO_ROOM.exists(), reason="/dev/full is Linux's")


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path, writes=True, tensorboard=False, stream=io.StringIO())


def shown(log: Log) -> list[str]:
    assert isinstance(log._stream, io.StringIO)
    return log._stream.getvalue().splitlines()


def test_a_full_disk_is_reported_once_and_the_log_goes_on_when_there_is_room(log, tmp_path):
    path = tmp_path / "log.jsonl"
    path.symlink_to(NO_ROOM)
    for number in range(3):
        log.event("step", number=number)
    (line,) = shown(log)
    assert line.startswith(f"The disk is full: {path} could not be written.")
    path.unlink()
    for number in (3, 4):
        log.event("step", number=number)
    assert [json.loads(row)["number"] for row in path.read_text().splitlines()] == [3, 4]
    assert shown(log)[1:] == [
        f"There is room on the disk again: {path} is written (3 times it could not be)."
    ]


def test_another_error_of_writing_is_not_kept_quiet(log, tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        log.event("step")


def test_a_line_that_went_half_onto_the_disk_is_taken_back(log, tmp_path, monkeypatch):
    class Half(io.FileIO):
        def write(self, line, /):  # as the kernel does where some room is left
            return super().write(bytes(line)[: len(line) // 2])

    log.event("before")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda path, mode, buffering: Half(path, mode))
        log.event("without room")
    log.event("after")
    rows = [json.loads(row)["event"] for row in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows == ["before", "after"] and len(shown(log)) == 2


def test_a_terminal_that_is_a_file_on_the_full_disk_ends_nothing(tmp_path):
    with NO_ROOM.open("wb", buffering=0) as file:
        log = Log(
            tmp_path,
            writes=True,
            tensorboard=False,
            stream=io.TextIOWrapper(file, write_through=True),
        )
        log.say("a sentence")
        log.line("progress")
        assert "a sentence" in (tmp_path / "log.jsonl").read_text()


def test_tensorboard_ends_with_a_sentence_and_the_training_goes_on(log):
    log._board = mock.Mock(**{"add_scalar.side_effect": OSError(errno.ENOSPC, "no room")})
    for step, values in ((1, {"loss": 1.0, "lr": 0.1}), (2, {"loss": 1.0})):
        log.scalars(values, step)
    log.close()
    assert shown(log) == ["The disk is full: TensorBoard's files end here. The training goes on."]


# --- training_stats.json: whole or as it was ---


def test_what_was_there_stays_where_there_is_no_room(log, tmp_path):
    path, aside = tmp_path / "some.json", tmp_path / ".some.json.writing"
    for number, kept, has_room in ((1, 1, True), (2, 1, False), (3, 3, True)):
        if not has_room:
            aside.symlink_to(NO_ROOM)
        write_json(path, {"a": number}, log)
        assert json.loads(path.read_text()) == {"a": kept} and not aside.is_symlink()
    assert "".join(shown(log)).count("The disk is full") == 1


@pytest.mark.parametrize(
    "name", ["log.jsonl", ".training_stats.json.writing", ".config.json.writing"]
)
def test_a_training_goes_on_to_its_end_without_room_for_what_it_writes(name, tmp_path, capsys):
    (tmp_path / name).symlink_to(NO_ROOM)
    result = fit(ledger_task(40), ledger_config(tmp_path, batch=BatchingConfig(micro_batch=4)))
    assert result.samples == 40 and result.checkpoints.is_dir()
    assert capsys.readouterr().err.count("The disk is full") == 1


@pytest.mark.parametrize(("epochs", "left_s"), [(2.0, 15.0), (None, None)])
def test_the_log_has_the_time_that_is_left_where_the_training_ends_by_epochs(
    log, tmp_path, epochs, left_s
):
    peaks = types.SimpleNamespace(read=lambda phase: Peak(), now_bytes=lambda: 1 << 20)
    progress = ProgressLog(log, peaks, Standing(10.0, 1.0, 50, 400, 0.0, 0.0, None), epochs)
    progress.write(Standing(15.0, 1.25, 75, 500, 2.0, 4.0, None), 0.1, {}, False)
    row = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert (row["step"], row["loss"], row["left_s"]) == (75, 0.5, left_s)
    beat, left, _ = of_engine(tmp_path)
    assert (beat.steps, beat.loss, left and left.value) == (75, 0.5, left_s)
