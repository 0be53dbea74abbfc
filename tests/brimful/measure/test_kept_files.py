"""Records that somebody else made are not changed, and what they hold is no secret of ours."""

import json
import os
import socket
from pathlib import Path

import pytest

from brimful import codec, masking
from brimful.measure.kept_files import mask, mask_cut_off
from brimful_inside import wire

SECRET = "correct-horse-9"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """One that was cut off, as far as its files say, on this machine."""
    folder = tmp_path / "home" / "20261128-120000-run-train" / "attempt-1"
    folder.mkdir(parents=True)
    (folder.parent / "record.jsonl").write_text(json.dumps({"hostname": socket.gethostname()}))
    config = wire.TrialConfig(str(folder), "cpu", settings={"api_key": SECRET})
    (folder / "trial_config.json").write_bytes(codec.encode(config))
    (folder / "stdout.txt").write_text(f"said {SECRET}")
    return folder.parent


def test_what_was_cut_off_is_masked_and_its_words_are_forgotten(record: Path):
    mask_cut_off(record.parent)
    assert SECRET not in "".join(path.read_text() for path in record.glob("*/*"))
    assert codec.decode((record / "attempt-1/trial_config.json").read_bytes(), wire.TrialConfig)
    assert masking.text(SECRET) == SECRET


@pytest.mark.parametrize("why", ["another user", "another machine", "no machine", "behind a link"])
def test_a_record_of_others_stays_as_it_is(record: Path, monkeypatch, why: str):
    if why == "another user":
        monkeypatch.setattr(os, "geteuid", lambda: 4711)
    elif why == "behind a link":
        moved = record.rename(record.parents[1] / "elsewhere")
        record.symlink_to(moved)
    else:
        text = '{"hostname": "another"}' if why == "another machine" else ""
        (record / "record.jsonl").write_text(text)
    before = {path: path.read_bytes() for path in record.rglob("*") if path.is_file()}
    mask_cut_off(record.parent)
    assert before == {path: path.read_bytes() for path in record.rglob("*") if path.is_file()}
    assert before and masking.text(SECRET) == SECRET


def test_planted_links_and_pipes_are_neither_read_nor_written(record: Path, tmp_path: Path):
    outside = tmp_path / "config"
    outside.write_text(f"of the user {SECRET}")
    outside.chmod(0o600)
    folder = record / "attempt-1"
    for name in ("stdout.txt.new", "private.json", "stderr.txt"):
        (folder / name).symlink_to(outside)
    os.mkfifo(folder / "wire-1.jsonl")
    (record / "attempt-2").symlink_to(tmp_path / "other")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "trial_config.json").write_text(json.dumps({"token": SECRET}))
    mask_cut_off(record.parent)
    mask(folder)
    assert outside.read_text() == f"of the user {SECRET}"
    assert SECRET in (tmp_path / "other" / "trial_config.json").read_text()
    assert SECRET not in (folder / "stdout.txt").read_text()
    assert (folder / "private.json").is_symlink()
