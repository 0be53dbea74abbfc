from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("captcha")

from brimful.errors import UsageError
from brimful.recipes.captcha.cache import Captchas
from brimful.recipes.captcha.data import held_out, images_of, shared_with
from brimful.recipes.captcha.options import ImageOptions


def captchas_of(images: np.ndarray) -> Captchas:
    return Captchas(images, np.arange(len(images), dtype=np.uint8)[:, None], Path("nowhere"))


def random_images(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8), dtype=np.uint8)


def test_training_and_held_out_images_are_drawn_apart_and_share_none(tmp_path: Path):
    options = ImageOptions(samples=40, eval_samples=40, digits=True, length=1, height=16, width=16, cache=tmp_path)
    train, valid = images_of(options, lambda _: None)
    assert len(train.images) == len(valid.images) == 40
    assert not shared_with(train.images, valid.images).any()
    # Labels may recur, and with one digit they must; images may not.
    assert set(train.labels.ravel()) & set(valid.labels.ravel())


def test_an_image_that_is_in_both_is_found_whatever_its_label():
    train, valid = random_images(20, 0), random_images(5, 1)
    valid[3] = train[17]
    assert shared_with(train, valid).tolist() == [False, False, False, True, False]


def test_one_pixel_makes_another_image():
    train = random_images(3, 0)
    valid = train.copy()
    valid[:, 0, 0] ^= 1
    assert not shared_with(train, valid).any()


def test_shared_images_are_not_measured_and_that_is_said():
    train, valid = random_images(20, 0), random_images(5, 1)
    valid[0] = valid[3] = train[17]
    said: list[str] = []
    left = held_out(captchas_of(train), captchas_of(valid), said.append)
    assert left.labels.ravel().tolist() == [1, 2, 4] and np.array_equal(left.images, valid[[1, 2, 4]])
    assert "2 of 5" in said[0] and "3 are measured" in said[0]


def test_where_nothing_is_left_to_measure_there_is_no_training():
    train = random_images(4, 0)
    with pytest.raises(UsageError, match="All 2 held-out images"):
        held_out(captchas_of(train), captchas_of(train[:2]), lambda _: None)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"samples": 0}, "--samples"),
        ({"eval_samples": 0}, "--eval-samples"),
        ({"digits": True, "alphabet": "AB"}, "--digits"),
        ({"dropout": 1.0}, "--dropout"),
        ({"draw_processes": 0}, "--draw-processes"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_name_of_its_flag(options: dict, word: str):
    with pytest.raises(UsageError) as caught:
        ImageOptions(**options)
    assert word in caught.value.problem and caught.value.suggestion


def test_digits_are_an_alphabet_of_ten():
    assert ImageOptions(digits=True).look.alphabet == "0123456789"
    assert len(ImageOptions().look.alphabet) == 36
    assert ImageOptions(alphabet="AB").look.alphabet == "AB"
