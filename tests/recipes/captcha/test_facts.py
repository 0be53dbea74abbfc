from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brimful.errors import UsageError
from brimful.recipes.captcha.facts import FILE_NAME, Facts, check_resumable, read_facts, write_facts

FACTS = Facts("0123456789", 4, 24, 64, 512, 0)


def test_they_are_found_from_the_training_its_checkpoints_and_their_files(tmp_path: Path):
    write_facts(tmp_path / "out", FACTS)
    checkpoint = tmp_path / "out" / "checkpoints" / "step-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"")
    for path in (tmp_path / "out", checkpoint.parent, checkpoint, checkpoint / "model.safetensors"):
        assert read_facts(path) == FACTS
    assert read_facts(tmp_path / "elsewhere") is None
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_file()] == [FILE_NAME]


@pytest.mark.parametrize("text", ["{", "{}", '{"alphabet": "01"}', "[]"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(UsageError, match=FILE_NAME):
        read_facts(tmp_path)


def test_a_training_goes_on_with_its_own_images_alone(tmp_path: Path):
    check_resumable(tmp_path, FACTS)  # nothing there yet
    write_facts(tmp_path, FACTS)
    check_resumable(tmp_path, replace(FACTS, height=30))  # no checkpoint yet: nothing to go on from
    (tmp_path / "checkpoints").mkdir()
    check_resumable(tmp_path, FACTS)
    with pytest.raises(UsageError) as caught:
        check_resumable(tmp_path, replace(FACTS, height=30))
    assert (
        "24 × 64" in caught.value.problem and "30 × 64" in caught.value.explanation and "--resume no" in caught.value.suggestion
    )
