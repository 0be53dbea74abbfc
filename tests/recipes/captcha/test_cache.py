import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from brimful.errors import DiskFull, UsageError
from recipes.captcha import cache, images
from recipes.captcha.cache import Captchas, Key, captchas, held_out, images_of
from recipes.captcha.images import DIGITS, ImageOptions, Look, Painter, texts
from recipes.common import cache as shared_cache
from recipes.common.cache import cache_folder
from tests.recipes.conftest import Messages

LOOK = Look(alphabet=DIGITS, length=2, height=16, width=40)
KEY = Key("train 0", 10, LOOK)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART", 4)


def draw_one(key: Key = KEY) -> np.ndarray:
    painter, written = Painter(key.look), texts(key.seed, key.count, key.look)
    return np.stack([painter.draw(key.seed, n, text) for n, text in enumerate(written)])


def test_the_array_holds_each_image_and_its_label(tmp_path: Path):
    drawn = captchas(KEY, tmp_path, 1, Messages())
    assert np.array_equal(drawn.images, draw_one())
    assert ["".join(DIGITS[place] for place in row) for row in drawn.labels] == texts(
        "train 0", 10, LOOK
    )
    assert np.array_equal(
        np.load(drawn.path, mmap_mode="r"), drawn.images
    )  # a plain .npy file, for anybody
    assert isinstance(drawn.images, np.memmap) and drawn.images.dtype == np.uint8


def test_it_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where the folder may only be read by then."""
    captchas(KEY, tmp_path, 1, first := Messages())
    # neither lock nor folder is needed from here on
    monkeypatch.setattr("recipes.common.cache.lock", None)
    monkeypatch.setattr(cache, "draw_part", None)
    drawn = captchas(KEY, tmp_path, 1, again := Messages())
    assert "Drawing 10 images, once" in first.text and again == []
    assert np.array_equal(drawn.images, draw_one())
    assert {path.suffix for path in tmp_path.iterdir()} in ({".lock", ".npy"}, {".npy"})


@pytest.mark.heavy
def test_several_processes_draw_the_same_as_one(tmp_path: Path):
    several = captchas(KEY, tmp_path / "several", 2, messages := Messages())
    assert np.array_equal(several.images, draw_one())
    assert "in 2 processes" in messages.text


def test_whatever_decides_the_pixels_is_in_the_name(monkeypatch: pytest.MonkeyPatch):
    looks = [{"alphabet": "012345678X"}, {"length": 3}, {"height": 17}, {"width": 41}]
    others = [
        replace(KEY, seed="valid 0"),
        replace(KEY, count=11),
        *(replace(KEY, look=replace(LOOK, **look)) for look in looks),
    ]
    names = {key.file_name for key in (KEY, replace(KEY), *others)}
    assert len(names) == 1 + len(others)
    monkeypatch.setattr(images, "package_versions", lambda: {"captcha": "99", "pillow": "1"})
    assert KEY.file_name not in names


def test_the_folder_is_among_the_users_caches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder("captcha") == Path("/somewhere/brimful/captcha")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder("captcha") == Path.home() / ".cache" / "brimful" / "captcha"


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: os.truncate(path, path.stat().st_size - 100),
        lambda path: np.save(path, np.zeros((9, 16, 40), dtype=np.uint8)),
        lambda path: path.write_bytes(b"something else"),
    ],
    ids=["cut off", "another shape", "something else"],
)
def test_a_damaged_file_is_named_and_drawn_anew(tmp_path: Path, damage):
    path = captchas(KEY, tmp_path, 1, Messages()).path
    damage(path)
    drawn = captchas(KEY, tmp_path, 1, messages := Messages())
    assert f"{path} is no whole array" in messages[0] and np.array_equal(drawn.images, draw_one())


def test_what_an_interruption_leaves_is_not_taken_for_the_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def some(*arguments, **more):
        yield b"x"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(cache, "mapped", some)
        captchas(KEY, tmp_path, 1, Messages())
    assert [path.suffix for path in tmp_path.iterdir() if path.suffix != ".lock"] == []
    (tmp_path / f"{KEY.file_name}.partial").write_bytes(
        b"\xff" * 100_000
    )  # as a process leaves it that is killed
    assert np.array_equal(captchas(KEY, tmp_path, 1, Messages()).images, draw_one())


PROGRAM = """
import sys
from pathlib import Path
from recipes.captcha import cache
from recipes.captcha.images import DIGITS, Look
cache.PART = 4
key = cache.Key("train 0", int(sys.argv[2]), Look(alphabet=DIGITS, length=2, height=16, width=40))
say = lambda sentence: print(sentence, flush=True)
cache.captchas(key, Path(sys.argv[1]), 2, say)
"""


def start(folder: Path, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.heavy
def test_a_process_that_is_killed_leaves_its_lock_and_no_children(tmp_path: Path):
    key = replace(KEY, count=100_000)  # as many as take minutes
    first, partial = start(tmp_path, 100_000), tmp_path / f"{key.file_name}.partial"
    try:
        until = time.monotonic() + 60
        while not (partial.exists() and partial.stat().st_size) and time.monotonic() < until:
            time.sleep(0.02)
        children = psutil.Process(first.pid).children(recursive=True)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert children and not (tmp_path / key.file_name).exists()
    psutil.wait_procs(children, timeout=30)
    assert [child for child in children if child.is_running()] == []
    assert np.array_equal(
        captchas(replace(KEY, count=12), tmp_path, 1, Messages()).images[:10], draw_one()
    )


def test_a_full_disk_is_reported_before_anything_is_drawn_and_none_of_it_is_taken(tmp_path: Path):
    beyond = replace(KEY, count=2**33)  # far more than any disk here has
    with pytest.raises(DiskFull, match="8,589,934,592 images take") as caught:
        captchas(beyond, tmp_path, 1, Messages())
    assert "--cache" in caught.value.suggestion and "nothing" in caught.value.kept
    blocks = sum(path.stat().st_blocks for path in tmp_path.rglob("*") if path.is_file())
    assert blocks * 512 < 2**20


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be kept in") as caught:
        captchas(KEY, tmp_path / "file" / "cache", 1, Messages())
    assert "--cache" in caught.value.suggestion


def test_a_process_that_waits_reports_it_once(tmp_path: Path):
    messages = Messages()
    held = shared_cache.FileLock(f"{tmp_path / KEY.file_name}.lock")
    held.acquire()

    def say(sentence: str) -> None:
        messages(sentence)
        if "waiting for it" in sentence:
            held.release()

    captchas(KEY, tmp_path, 1, say)
    assert messages.text.count("waiting for it") == 1 and "Drawing" in messages[-1]


def captchas_of(images: np.ndarray) -> Captchas:
    return Captchas(images, np.arange(len(images), dtype=np.uint8)[:, None], Path("nowhere"))


def random_images(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 8, 8), dtype=np.uint8)


def test_training_and_held_out_images_are_drawn_apart_and_share_none(tmp_path: Path):
    options = ImageOptions(
        samples=40, eval_samples=40, digits=True, length=1, height=16, width=16, cache=tmp_path
    )
    train, valid = images_of(options, messages := Messages())
    assert len(train.images) == len(valid.images) == 40 and "held-out" not in messages.text
    # Labels may recur, and with one digit they must; images may not.
    assert set(train.labels.ravel()) & set(valid.labels.ravel())


def test_held_out_images_that_are_training_images_too_are_not_measured_and_counted_in_a_message():
    train, valid = random_images(20, 0), random_images(5, 1)
    valid[0] = valid[3] = train[17]  # whatever its label
    valid[1] = train[2]
    valid[1, 0, 0] ^= 1  # one pixel makes another image
    left = held_out(captchas_of(train), captchas_of(valid), messages := Messages())
    assert left.labels.ravel().tolist() == [1, 2, 4] and np.array_equal(
        left.images, valid[[1, 2, 4]]
    )
    assert "2 of 5" in messages[0] and "3 are measured" in messages[0]
    with pytest.raises(UsageError, match="All 5 held-out images"):
        held_out(captchas_of(valid), captchas_of(valid), messages)
