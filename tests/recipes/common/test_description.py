from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from brimful.errors import UsageError
from brimful_train.config import Config
from recipes.common.description import (
    check_resumable,
    description_of,
    read_description,
    require_same,
    write_description,
)

NAME = "recipe.json"


@dataclass(frozen=True)
class Facts:
    alphabet: str
    image_height: int


FACTS = Facts("01中", 24)
WRITTEN = asdict(FACTS)


def test_they_are_found_from_the_training_its_checkpoints_and_their_files(tmp_path: Path):
    write_description(tmp_path / "out", NAME, WRITTEN)
    checkpoint = tmp_path / "out" / "checkpoints" / "step-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"")
    for path in (tmp_path / "out", checkpoint.parent, checkpoint, checkpoint / "model.safetensors"):
        assert description_of(path, NAME, Facts) == (tmp_path / "out", FACTS)
    with pytest.raises(UsageError, match=f"No {NAME} at or above"):
        description_of(tmp_path, NAME, Facts)
    with pytest.raises(UsageError, match="no checkpoint at"):
        description_of(tmp_path / "elsewhere", NAME, Facts)
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_file()] == [NAME]


@pytest.mark.parametrize("text", ["{", "{}", '{"alphabet": "01"}', "[]"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str):
    (tmp_path / NAME).write_text(text)
    with pytest.raises(UsageError, match=NAME):
        read_description(tmp_path / NAME, Facts)


def test_a_training_goes_on_with_its_own_configuration_alone(tmp_path: Path):
    check_resumable(Config(out=tmp_path), NAME, WRITTEN)  # nothing there yet
    write_description(tmp_path, NAME, WRITTEN)
    check_resumable(
        Config(out=tmp_path), NAME, {**WRITTEN, "image_height": 30}
    )  # no checkpoint yet: nothing to go on from
    (tmp_path / "checkpoints").mkdir()
    check_resumable(Config(out=tmp_path), NAME, WRITTEN)
    with pytest.raises(UsageError, match="image height 24 and not 30") as caught:
        check_resumable(Config(out=tmp_path), NAME, {**WRITTEN, "image_height": 30})
    assert "alphabet" not in caught.value.problem and "--resume no" in caught.value.suggestion


def test_a_folder_takes_results_of_one_description_alone(tmp_path: Path):
    for _ in range(2):
        require_same(tmp_path, NAME, WRITTEN, "study")
    other = {**WRITTEN, "image_height": 32}
    with pytest.raises(UsageError, match="of another study: it has image height 24 and not 32"):
        require_same(tmp_path, NAME, other, "study")
