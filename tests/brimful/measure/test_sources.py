"""Files that a command is made of, and what became of them."""

from dataclasses import replace

import pytest

from brimful.measure.sources import Differences, are_as_they_were, differences, digests
from brimful.values import Place, TrialKind
from tests.brimful.measure.helper import REPORT
from tests.brimful.show.product import trial_result


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "model.py", "config.yaml", "data.csv"):
        (tmp_path / name).write_text(name)
    return tmp_path


def loaded(*paths):
    return [
        replace(
            trial_result(1, TrialKind.SPEED), reports=(replace(REPORT, sources=[*map(str, paths)]),)
        )
    ]


def test_scripts_modules_and_configurations_are_kept_by_their_path_from_here_and_data_are_not(
    folder,
):
    words = ("python", "train.py", "--config=config.yaml", "--data", "data.csv", "gone.py")
    found = digests(words, loaded(folder / "train.py", folder / "model.py"))
    assert list(found) == ["config.yaml", "model.py", "train.py"]


def test_a_file_in_which_a_number_is_set_is_kept_though_the_command_does_not_name_it(folder):
    (folder / "sft.yaml").write_text("batch_size: 8")
    place = Place("script", str(folder / "sft.yaml"), 1, 12, 8, "batch_size: 8", "train.py:3")
    trial = trial_result(1, TrialKind.SPEED)
    command = replace(trial.trial.command, places={"batch_size": place})
    kept = digests(
        ("python", "train.py"), [replace(trial, trial=replace(trial.trial, command=command))]
    )
    assert list(kept) == ["sft.yaml", "train.py"] and are_as_they_were(kept)
    (folder / "sft.yaml").write_text("batch_size: 16")
    assert not are_as_they_were(kept)


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


@pytest.mark.parametrize(
    ("name", "before", "after", "changed"),
    [
        ("train.py", "a = 1\n", "# a number\n\na = 1  # one\n", False),
        ("train.py", "a = 1\n", "a = 2\n", True),
        ("train.py", "a = 1\n", "a = '\n", True),
        ("run.sh", "python train.py\n", "# run\npython train.py\n", True),
    ],
)
def test_a_comment_alone_is_no_change_of_a_python_file(folder, name, before, after, changed):
    (folder / name).write_text(before)
    found = digests(("bash", name), loaded(folder / name))
    (folder / name).write_text(after)
    assert bool(differences(found).changed) is changed


def test_a_record_that_has_the_digest_of_the_bytes_alone_is_still_compared(folder):
    found = {
        path: digest.split()[0] for path, digest in digests((), loaded(folder / "train.py")).items()
    }
    assert differences(found) == Differences((), (), ())
    (folder / "train.py").write_text("2")
    assert differences(found).changed == ("train.py",)
