import json
from pathlib import Path

import pytest
from PIL import Image

from brimful.errors import UsageError
from recipes.captcha.images import DIGITS, Look, Painter, texts
from recipes.captcha.reading import FILE_NAME, load_reader, read_images, show
from tests.recipes.captcha.conftest import SMALL, run_recipe

LOOK = Look(alphabet=DIGITS, length=2, height=16, width=32)


@pytest.fixture(scope="module")
def trained(images_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    run_recipe(images_cache, *SMALL, "--out", out, "--batch-size", 16, "--epochs", 1)
    return out


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    painter = Painter(LOOK)
    for number, text in enumerate(("12", "34", "56")):
        Image.fromarray(painter.draw("test", number, text)).save(folder / f"{number}.png")
    return folder


pytestmark = pytest.mark.heavy


def test_a_folder_is_read_in_order_whatever_the_batch_size(trained: Path, pictures: Path):
    at_once, by_one = (list(read_images([pictures], trained, size, "cpu")) for size in (256, 1))
    assert [Path(reading.path).name for reading in at_once] == ["0.png", "1.png", "2.png"]
    for one, other in zip(at_once, by_one, strict=True):
        assert one.text == other.text and len(one.text) == 2 and set(one.text) <= set(DIGITS)
        assert 0 < one.confidence <= 1
        assert one.confidence == pytest.approx(other.confidence, abs=1e-5)


def test_it_reads_what_the_network_was_trained_to_read(images_cache: Path, tmp_path: Path):
    """Overfitted on few images, it reads these right: labels, places and the alphabet belong
    together.
    """
    flags = [
        "--samples",
        24,
        "--epochs",
        60,
        "--batch-size",
        8,
        "--dropout",
        0,
        "--eval-every-epochs",
        60,
    ]
    run_recipe(
        images_cache, *SMALL, *flags, "--checkpoint-every-epochs", 60, "--out", tmp_path / "out"
    )
    painter, files, shown = Painter(LOOK), [], texts("train 0", 24, LOOK)
    for number, text in enumerate(shown):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(painter.draw("train 0", number, text)).save(files[-1])
    read = [reading.text for reading in read_images(files, tmp_path / "out", 8, "cpu")]
    assert sum(one == other for one, other in zip(read, shown, strict=True)) >= 20, (read, shown)


def test_an_image_of_another_size_is_scaled_with_a_note(trained: Path, tmp_path: Path):
    Image.new("RGB", (160, 60), "white").save(tmp_path / "large.png")
    (reading,) = read_images([tmp_path / "large.png"], trained, 8, "cpu")
    assert reading.text is not None and reading.note == "scaled from 60 × 160 to 16 × 32"


def test_what_is_no_image_is_named_and_the_others_are_read(
    trained: Path, pictures: Path, tmp_path: Path
):
    (tmp_path / "words.png").write_text("no image")
    whole = (pictures / "0.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    files = [tmp_path / "words.png", pictures / "0.png", tmp_path / "cut.png", pictures / "1.png"]
    readings = list(read_images(files, trained, 4, "cpu"))
    assert [reading.text is None for reading in readings] == [True, False, True, False]
    assert readings[0].note == "not an image" and readings[2].note.startswith("cannot be read")


def test_the_best_checkpoint_a_single_one_and_its_folder_are_all_taken(trained: Path):
    (checkpoint,) = sorted((trained / "checkpoints").glob("step-*"))[-1:]
    loaded = [load_reader(path) for path in (trained, trained / "checkpoints", checkpoint)]
    assert len({model.state_dict()["head.1.weight"].sum().item() for model, _ in loaded}) == 1
    assert loaded[0][1].alphabet == DIGITS


def test_the_command_prints_a_line_a_file_or_json(trained: Path, pictures: Path):
    words = ["read", pictures, "--checkpoint", trained, "--device", "cpu"]
    plain = [line.split("\t") for line in run_recipe(None, *words).stdout.splitlines()]
    assert [path for path, _ in plain] == [str(pictures / f"{n}.png") for n in range(3)]
    rows = [json.loads(line) for line in run_recipe(None, *words, "--json").stdout.splitlines()]
    assert [[row["path"], row["text"]] for row in rows] == plain


def test_the_exit_code_shows_that_a_file_was_not_read_and_the_others_are_answered(
    trained, pictures, tmp_path, capsys
):
    (tmp_path / "words.png").write_text("no image")
    (tmp_path / "empty").mkdir()
    paths = [tmp_path / "words.png", tmp_path / "gone.png", tmp_path / "empty", pictures]
    assert show(read_images(paths, trained, 8, "cpu"), as_json=False) == 2
    printed = capsys.readouterr()
    assert [line.split("\t")[0] for line in printed.out.splitlines()] == [
        str(pictures / f"{n}.png") for n in range(3)
    ]
    for name, why in (
        ("words.png", "not an image"),
        ("gone.png", "cannot be read: No such file"),
        ("empty", "no image files in it"),
    ):
        assert f"{tmp_path / name} could not be read: {why}" in printed.err
    assert "3 of 6 files could not be read." in printed.err
    assert show(read_images([pictures], trained, 8, "cpu"), as_json=True) == 0


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        ("nowhere", "There is no checkpoint at"),
        ("empty", "No captcha.json at or above"),
        ("facts", "facts holds no checkpoint"),
    ],
)
def test_a_folder_without_a_checkpoint_is_named(
    checkpoint: str, words: str, trained: Path, pictures: Path, tmp_path: Path
):
    for name in ("empty", "facts"):
        (tmp_path / name).mkdir()
    (tmp_path / "facts" / FILE_NAME).write_bytes((trained / FILE_NAME).read_bytes())
    with pytest.raises(UsageError, match=words):
        list(read_images([pictures], tmp_path / checkpoint, 8, "cpu"))
