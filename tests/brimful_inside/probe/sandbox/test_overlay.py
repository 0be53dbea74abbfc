"""The layer over the file system: what is written lies in the trial's folder, and is read from
there in its place.
"""

import os
from pathlib import Path

import pytest

from brimful_inside.probe.sandbox import covered_paths, overlay
from brimful_inside.probe.sandbox.overlay import Overlay


@pytest.fixture
def layer(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "trial").mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(covered_paths, "_script_folder", lambda: [])
    return Overlay(str(tmp_path / "trial"))


def path(name):
    return os.path.join(os.getcwd(), name)


def write(path, text=""):
    Path(path).write_text(text)


def read(path):
    return Path(path).read_text()


def test_the_working_folder_is_covered_and_the_trials_own_is_not(layer, tmp_path):
    assert layer.paths.protects(path("best.pt")) and layer.paths.protects(
        "/home/somebody/out/best.pt"
    )
    assert not layer.paths.protects(str(tmp_path / "trial" / "trace-0.jsonl"))
    for passing in (
        "/dev/null",
        "/dev/shm/x",
        "/proc/self/status",
        os.path.expanduser("~/.triton/cache/x"),
    ):
        assert not layer.paths.protects(passing)
    assert layer.paths.covered(3) is None and layer.paths.covered(object()) is None


def test_temporary_files_pass_and_the_users_own_files_in_temporary_folders_do_not(layer):
    assert (
        not layer.paths.protects("/tmp/tmpabc123/x")
        and not layer.paths.protects("/tmp/pymp-1/listener")
        and not layer.paths.protects("/tmp")
    )
    assert layer.paths.protects("/tmp/out/best.pt")
    layer.paths.made_by_tempfile("/tmp/out-7/x")
    assert not layer.paths.protects("/tmp/out-7/y")


def test_what_is_removed_is_gone_for_the_trial_alone(layer):
    os.makedirs(path("folder/inner"))
    write(path("folder/inner/a"))
    layer.hide(path("folder"))
    assert not layer.is_visible(path("folder")) and not layer.is_visible(path("folder/inner/a"))
    assert os.path.exists(path("folder/inner/a"))
    os.mkdir(layer.to_write(path("folder"), keeps_content=False))
    assert layer.is_visible(path("folder")) and not layer.is_visible(path("folder/inner"))
    assert layer.names(path("folder")) == ([], set())


def test_a_listing_holds_both_layers(layer):
    write(path("a"))
    write(path("b"))
    write(layer.to_write(path("c"), keeps_content=False))
    write(layer.to_write(path("a"), keeps_content=False))
    layer.hide(path("b"))
    assert sorted(layer.names(os.getcwd())[0]) == ["a", "c"]


def test_another_process_sees_the_same_layer(layer, tmp_path):
    write(layer.to_write(path("a"), keeps_content=False), "new")
    other = Overlay(str(tmp_path / "trial"))
    assert other.is_used and read(other.where(path("a"))) == "new"


def test_what_another_process_wrote_is_read_once_its_name_was_taken(layer, tmp_path):
    """Two ranks make one folder: the second's mkdir(exist_ok=True) asks whether it is one."""
    other = Overlay(str(tmp_path / "trial"))
    assert not other.is_used, "nothing is written yet; the next look is later"
    os.mkdir(layer.to_write(path("cache"), keeps_content=False))
    assert other.is_visible(path("cache")) and other.is_used


def test_a_file_too_large_to_be_copied_is_refused(layer, monkeypatch):
    monkeypatch.setattr(overlay, "MAX_COPIED_BYTES", 10)
    write(path("big"), "x" * 11)
    with pytest.raises(PermissionError, match="may not write into a file this large"):
        layer.to_write(path("big"), keeps_content=True)
