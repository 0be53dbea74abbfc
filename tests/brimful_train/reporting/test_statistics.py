"""training_stats.json: whole or as it was, and no full disk ends a training because of it."""

import io
import json
from pathlib import Path

import pytest

from brimful_train import BatchingConfig, fit
from brimful_train.reporting.progress_log import Log, write_json
from tests.brimful_train.ledger import ledger_config, ledger_task

NO_ROOM = Path("/dev/full")  # writing it fails for want of room
pytestmark = pytest.mark.skipif(not NO_ROOM.exists(), reason="/dev/full is Linux's")


def test_what_was_there_stays_where_there_is_no_room(tmp_path):
    stream = io.StringIO()
    log = Log(tmp_path, writes=True, tensorboard=False, stream=stream)
    path, aside = tmp_path / "some.json", tmp_path / ".some.json.writing"
    write_json(path, {"a": 1}, log)
    aside.symlink_to(NO_ROOM)
    write_json(path, {"a": 2}, log)
    assert json.loads(path.read_text()) == {"a": 1} and not aside.is_symlink()
    assert stream.getvalue().count("The disk is full") == 1
    write_json(path, {"a": 3}, log)
    assert json.loads(path.read_text()) == {"a": 3}


def test_an_error_that_is_no_full_disk_is_raised(tmp_path):
    log = Log(tmp_path, writes=True, tensorboard=False, stream=io.StringIO())
    with pytest.raises(FileNotFoundError):
        write_json(tmp_path / "nowhere" / "some.json", {}, log)


@pytest.mark.parametrize(
    "name", ["log.jsonl", ".training_stats.json.writing", ".config.json.writing"]
)
def test_a_training_goes_on_to_its_end_without_room_for_what_it_writes(name, tmp_path, capsys):
    (tmp_path / name).symlink_to(NO_ROOM)
    result = fit(ledger_task(40), ledger_config(tmp_path, batch=BatchingConfig(micro_batch=4)))
    assert result.samples == 40 and result.checkpoints.is_dir()
    assert capsys.readouterr().err.count("The disk is full") == 1
