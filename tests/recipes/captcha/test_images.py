import subprocess
import sys
from pathlib import Path

import captcha.image
import numpy as np
import pytest
from PIL import Image

from brimful.errors import UsageError
from recipes.captcha import images
from recipes.captcha.images import ImageOptions, Look, Painter, texts

EXAMPLE = Path(__file__).parents[3] / "examples" / "captcha"


def test_images_are_those_of_the_example_script_pixel_by_pixel(tmp_path: Path):
    program = "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import train\n"
    program += "train.draw_captchas(pathlib.Path('drawn'), 6, 'train 0')\n"
    subprocess.run(
        [sys.executable, "-c", program, str(EXAMPLE)], cwd=tmp_path, check=True, timeout=120
    )
    files = sorted((tmp_path / "drawn").glob("*.png"), key=lambda path: path.stem[-6:])
    look = Look()
    painter, shown = Painter(look), texts("train 0", 6, look)
    assert [file.name[:4] for file in files] == shown
    for number, (file, text) in enumerate(zip(files, shown, strict=True)):
        with Image.open(file) as picture:
            assert np.array_equal(np.asarray(picture), painter.draw("train 0", number, text))


def test_an_image_depends_on_seed_and_number_alone():
    painter = Painter(Look())
    first = painter.draw("a", 3, "AB12")
    painter.draw("b", 1, "9999")
    assert np.array_equal(first, painter.draw("a", 3, "AB12"))
    assert not np.array_equal(first, painter.draw("a", 4, "AB12"))
    assert not np.array_equal(first, painter.draw("b", 3, "AB12"))
    assert captcha.image.secrets.__name__ == "secrets"  # put back as it was


def test_a_smaller_data_set_is_the_beginning_of_a_larger_one():
    assert texts("s", 5, Look()) == texts("s", 9, Look())[:5]
    assert {len(text) for text in texts("s", 9, Look(length=6))} == {6}


def test_another_size_is_the_same_image_scaled():
    small = Painter(Look(height=30, width=80)).draw("a", 0, "AB12")
    large = Painter(Look()).draw("a", 0, "AB12").astype(float)
    assert small.shape == (30, 80) and small.dtype == np.uint8
    assert np.abs(large.reshape(30, 2, 80, 2).mean((1, 3)) - small).max() <= 1.0


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"alphabet": "AAB"}, "--alphabet"),
        ({"alphabet": "".join(map(chr, range(200, 500)))}, "--alphabet"),
        ({"digits": True, "alphabet": "AB"}, "--digits"),
        *(({name: 0}, f"--{name}") for name in ("height", "width")),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_name_of_its_flag(options: dict, flag: str):
    with pytest.raises(UsageError) as caught:
        ImageOptions(**options).look  # noqa: B018
    assert flag in caught.value.problem and caught.value.suggestion


def test_the_alphabet_is_that_of_the_flags():
    assert [
        len(ImageOptions(**options).look.alphabet)
        for options in ({}, {"digits": True}, {"alphabet": "AB"})
    ] == [36, 10, 2]


def test_a_missing_package_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> str:
        raise images.PackageNotFoundError(name)

    monkeypatch.setattr(images, "version", missing)
    for needs in (images.package_versions, lambda: Painter(Look())):
        with pytest.raises(UsageError) as caught:
            needs()
        assert (
            "captcha is not installed" in caught.value.problem
            and "train,captcha]" in caught.value.suggestion
        )
