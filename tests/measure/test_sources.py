"""Files that a command is made of, and what became of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.measure.sources import Differences, differences, digests
from brimful.values import TrialKind
from tests.measure.helper import REPORT
from tests.show.product import trial_result


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "model.py", "config.yaml", "data.csv"):
        (tmp_path / name).write_text(name)
    return tmp_path


def loaded(*paths):
    return [replace(trial_result(1, TrialKind.SPEED), reports=(replace(REPORT, sources=[*map(str, paths)]),))]


def test_scripts_modules_and_configurations_are_kept_by_their_path_from_here_and_data_are_not(folder):
    words = ("python", "train.py", "--config=config.yaml", "--data", "data.csv", "gone.py")
    found = digests(words, loaded(folder / "train.py", folder / "model.py"))
    assert list(found) == ["config.yaml", "model.py", "train.py"]


def test_a_large_file_that_is_named_is_data(folder):
    (folder / "train.json").write_text(" " * (1 << 20) + "1")
    assert digests(("python", "train.json"), ()) == {}


def test_what_changed_and_what_is_gone_is_told_apart(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("package") / "lib.py"
    outside.write_text("1")
    found = digests((), loaded(folder / "train.py", folder / "model.py", outside))
    assert differences(found) == Differences((), (), ())
    (folder / "train.py").write_text("2")
    (folder / "model.py").unlink()
    outside.unlink()
    assert differences(found) == Differences(("train.py",), ("model.py",), (str(outside),))
