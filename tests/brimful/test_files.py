"""Files in folders that somebody else may have made."""

import os
import stat
from pathlib import Path

import pytest

from brimful import files


def _planted(folder: Path) -> dict[str, Path]:
    """What may lie where a file is expected, by kind."""
    (folder / "target").write_text("of the user")
    paths = {kind: folder / kind for kind in ("link", "dangling", "pipe", "folder", "device")}
    paths["link"].symlink_to(folder / "target")
    paths["dangling"].symlink_to(folder / "new")
    os.mkfifo(paths["pipe"])
    paths["folder"].mkdir()
    paths["device"].symlink_to("/dev/zero")
    return paths


def test_only_regular_files_are_read_and_none_is_waited_for(tmp_path: Path):
    for path in _planted(tmp_path).values():
        with pytest.raises(OSError):
            files.read(path)
    with pytest.raises(OSError, match="no regular file"):
        files.read(tmp_path / "device", follows_links=True)
    assert files.read(tmp_path / "link", follows_links=True) == b"of the user"


def test_a_new_file_is_written_through_no_link_and_over_none(tmp_path: Path):
    for kind, path in _planted(tmp_path).items():
        with pytest.raises(FileExistsError):
            files.create(path)
        if kind == "folder":
            continue
        files.replace(path, b"ours")
        assert path.read_bytes() == b"ours" and files.is_regular(path)
    assert (tmp_path / "target").read_text() == "of the user"
    assert not (tmp_path / "new").exists()
    with pytest.raises(OSError):
        files.replace(tmp_path / "folder", b"ours")
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_a_private_file_stays_private_and_a_shared_one_shared(tmp_path: Path):
    for mode in (0o600, 0o644, 0o640):
        path = tmp_path / oct(mode)
        path.touch()
        path.chmod(mode)
        files.replace(path, b"new")
        assert stat.S_IMODE(path.stat().st_mode) == mode
    os.close(files.create(tmp_path / "created"))
    assert stat.S_IMODE((tmp_path / "created").stat().st_mode) == 0o600


def test_a_file_that_the_user_names_may_be_a_link_and_a_pipe_without_a_reader_fails(tmp_path: Path):
    paths = _planted(tmp_path)
    files.write_named(paths["link"], b"ours")
    assert (tmp_path / "target").read_bytes() == b"ours"
    with pytest.raises(OSError):
        files.write_named(paths["pipe"], b"ours")


def test_a_folder_of_another_user_or_behind_a_link_is_not_ones_own(tmp_path: Path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path)
    assert files.is_own_folder(tmp_path) and not files.is_own_folder(tmp_path / "link")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert not files.is_own_folder(tmp_path)
