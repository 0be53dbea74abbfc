from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("captcha")

import pytest

from brimful.errors import BrimfulError, DiskFull, UsageError
from brimful.recipes.captcha import cache, drawing, images
from brimful.recipes.captcha.cache import Captchas, Key, cache_folder, captchas, held_out, images_of, shared_with
from brimful.recipes.captcha.images import DIGITS, ImageOptions, Look, Painter, texts

LOOK = Look(alphabet=DIGITS, length=2, height=16, width=40)
KEY = Key("train 0", 10, LOOK)


class Said(list):
    def __call__(self, sentence: str) -> None:
        self.append(sentence)

    @property
    def text(self) -> str:
        return "\n".join(self)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART", 4)


def draw_one(key: Key = KEY) -> np.ndarray:
    painter = Painter(key.look)
    return np.stack([painter.draw(key.seed, n, text) for n, text in enumerate(texts(key.seed, key.count, key.look))])


def test_the_array_holds_each_image_and_its_label(tmp_path: Path):
    drawn = captchas(KEY, tmp_path, 1, Said())
    assert np.array_equal(drawn.images, draw_one())
    assert ["".join(DIGITS[place] for place in row) for row in drawn.labels] == texts("train 0", 10, LOOK)
    assert np.array_equal(np.load(drawn.path, mmap_mode="r"), drawn.images)  # a plain .npy file, for anybody
    assert isinstance(drawn.images, np.memmap) and drawn.images.dtype == np.uint8


def test_it_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, said = Said(), Said()
    captchas(KEY, tmp_path, 1, first)
    monkeypatch.setattr(drawing, "draw_part", None)  # nobody may draw from here on
    captchas(KEY, tmp_path, 1, said)
    assert "Drawing 10 images: once" in first.text and said == []
    assert sorted(path.suffix for path in tmp_path.iterdir()) in ([".lock", ".npy"], [".npy"])


@pytest.mark.heavy
def test_several_processes_draw_the_same_as_one(tmp_path: Path):
    several = captchas(KEY, tmp_path / "several", 2, said := Said())
    assert np.array_equal(several.images, draw_one())
    assert "in 2 processes" in said.text


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, seed="valid 0"),
        replace(KEY, count=11),
        replace(KEY, look=replace(LOOK, alphabet="012345678X")),
        replace(KEY, look=replace(LOOK, length=3)),
        replace(KEY, look=replace(LOOK, height=17)),
        replace(KEY, look=replace(LOOK, width=41)),
    ],
)
def test_whatever_decides_the_pixels_is_in_the_name(other: Key):
    assert other.file_name != KEY.file_name == replace(KEY).file_name


def test_so_is_the_version_of_the_package(monkeypatch: pytest.MonkeyPatch):
    before = KEY.file_name
    monkeypatch.setattr(images, "package_versions", lambda: {"captcha": "99", "pillow": "1"})
    assert KEY.file_name != before


def test_the_folder_is_among_the_users_caches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/brimful/captcha")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "brimful" / "captcha"


def test_a_file_that_was_cut_off_is_said_and_drawn_anew(tmp_path: Path):
    path = captchas(KEY, tmp_path, 1, Said()).path
    os.truncate(path, path.stat().st_size - 100)
    drawn = captchas(KEY, tmp_path, 1, said := Said())
    assert "cut off" in said.text and np.array_equal(drawn.images, draw_one())


def test_a_file_of_something_else_is_said_and_drawn_anew(tmp_path: Path):
    (tmp_path / KEY.file_name).write_bytes(b"something else")
    drawn = captchas(KEY, tmp_path, 1, said := Said())
    assert "is not an array" in said.text and np.array_equal(drawn.images, draw_one())


def interrupted(folder: Path, parts: int) -> None:
    """Leaves `folder` as a process does that was killed after so many parts."""
    whole = cache.draw_parts

    def some(*arguments):
        for number, part in enumerate(whole(*arguments)):
            if number == parts:
                raise KeyboardInterrupt
            yield part

    cache.draw_parts = some
    try:
        with pytest.raises(KeyboardInterrupt):
            captchas(KEY, folder, 1, Said())
    finally:
        cache.draw_parts = whole


def test_what_was_drawn_before_an_interruption_is_not_drawn_again(tmp_path: Path):
    interrupted(tmp_path, 2)
    assert not (tmp_path / KEY.file_name).exists()
    drawn = captchas(KEY, tmp_path, 1, said := Said())
    assert "8 of them drawn before" in said.text and np.array_equal(drawn.images, draw_one())


def test_a_part_that_was_damaged_meanwhile_is_drawn_again(tmp_path: Path):
    interrupted(tmp_path, 2)
    with open(tmp_path / f"{KEY.file_name}.partial", "r+b") as file:
        file.seek(len(cache._header(KEY)) + 3)
        file.write(b"\xff\x00\xff")
    drawn = captchas(KEY, tmp_path, 1, said := Said())
    assert "4 of them drawn before" in said.text and np.array_equal(drawn.images, draw_one())


def test_notes_that_are_nonsense_are_no_parts(tmp_path: Path):
    (tmp_path / f"{KEY.file_name}.progress").write_text("0 1\nx\n999999 5\n4 ")
    assert np.array_equal(captchas(KEY, tmp_path, 1, Said()).images, draw_one())


PROGRAM = """
import sys
from pathlib import Path
from brimful.recipes.captcha import cache
from brimful.recipes.captcha.images import DIGITS, Look
cache.PART = 4
key = cache.Key("train 0", int(sys.argv[2]), Look(alphabet=DIGITS, length=2, height=16, width=40))
cache.captchas(key, Path(sys.argv[1]), int(sys.argv[3]), lambda sentence: print(sentence, flush=True))
"""


def start(folder: Path, count: int, processes: int = 1) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(count), str(processes)], stdout=subprocess.PIPE, text=True
    )


@pytest.mark.heavy
def test_of_processes_that_ask_at_once_one_draws(tmp_path: Path):
    asking = [start(tmp_path, 400) for _ in range(3)]
    said = [process.communicate(timeout=120)[0] for process in asking]
    assert [process.returncode for process in asking] == [0, 0, 0]
    assert sum("Drawing 400 images" in text for text in said) == 1, said
    key = replace(KEY, count=400)
    assert np.array_equal(captchas(key, tmp_path, 1, Said()).images[:10], draw_one())


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.heavy
@pytest.mark.parametrize("processes", [1, 2])
def test_a_process_that_is_killed_leaves_its_lock_its_parts_and_no_children(tmp_path: Path, processes: int):
    key = replace(KEY, count=4000)
    first, notes = start(tmp_path, 4000, processes), tmp_path / f"{key.file_name}.progress"
    try:
        until = time.monotonic() + 60
        while lines_of(notes) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        children = children_of(first.pid)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    done = lines_of(notes)
    assert done >= 3 and len(children) >= processes - 1
    seen = captchas_of_first_parts(key, tmp_path)
    assert seen >= 3 * 4
    until = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < until:
        time.sleep(0.05)
    assert [child for child in children if Path(f"/proc/{child}").exists()] == []


def children_of(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def captchas_of_first_parts(key: Key, folder: Path) -> int:
    """How many images the next process finds drawn; it is stopped as soon as it has said so."""
    said = Said()

    def stop(*_arguments):
        raise KeyboardInterrupt

    before, drawing.draw_part = drawing.draw_part, stop
    try:
        with pytest.raises(KeyboardInterrupt):
            captchas(key, folder, 1, said)
    finally:
        drawing.draw_part = before
    return int(said.text.split("images, ")[1].split(" of them")[0].replace(",", ""))


def test_a_full_disk_is_said_with_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFull) as caught:
        captchas(KEY, tmp_path, 1, Said())
    assert (
        "10 images take" in caught.value.problem
        and "--cache" in caught.value.suggestion
        and "next run" in caught.value.explanation
    )


def test_images_that_the_disk_has_no_room_for_take_none_of_it(tmp_path: Path):
    beyond = replace(KEY, count=2**33)  # far more than any disk here has
    with pytest.raises(DiskFull):
        captchas(beyond, tmp_path, 1, Said())
    assert sum(path.stat().st_blocks for path in tmp_path.rglob("*") if path.is_file()) * 512 < 2**20


def test_room_that_was_taken_in_vain_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Another process filled the disk meanwhile: what the reservation had got by then does not stay."""

    def half(descriptor: int, start: int, size: int) -> None:
        os.pwrite(descriptor, bytes(size // 2), start)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", half)
    with pytest.raises(DiskFull):
        captchas(KEY, tmp_path, 1, Said())
    assert [path.stat().st_size for path in tmp_path.rglob("*.partial")] == [0]


def test_a_disk_that_cannot_reserve_is_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def cannot(*_arguments: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    assert np.array_equal(captchas(KEY, tmp_path, 1, Said()).images, draw_one())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be kept in") as caught:
        captchas(KEY, tmp_path / "file" / "cache", 1, Said())
    assert "--cache" in caught.value.suggestion


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def read_only(path, *rest, **more):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(cache.FileLock, "acquire", read_only)
    with pytest.raises(UsageError, match=r"cannot be kept in .*Read-only"):
        captchas(KEY, tmp_path, 1, Said())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UsageError, match="cannot be kept in"):
            captchas(KEY, tmp_path, 1, Said())
    finally:
        tmp_path.chmod(0o700)


def test_a_read_only_folder_that_has_the_array_already_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    captchas(KEY, tmp_path, 1, Said())
    monkeypatch.setattr(cache, "_Lock", None)  # neither lock nor folder is asked for
    monkeypatch.setattr(cache, "_make_folder", None)
    assert np.array_equal(captchas(KEY, tmp_path, 1, Said()).images, draw_one())


def test_a_process_that_waits_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "POLL_EVERY_S", 0.05)
    path, said = tmp_path / KEY.file_name, Said()
    held = cache.FileLock(f"{path}.lock")
    held.acquire()

    def say(sentence: str) -> None:
        said(sentence)
        if "waiting for it" in sentence:
            time.sleep(0.2)
            held.release()

    captchas(KEY, tmp_path, 1, say)
    assert said.text.count("waiting for it") == 1 and "Drawing" in said[-1]


@pytest.mark.heavy
def test_a_drawing_process_that_dies_is_an_error_and_no_endless_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drawing, "_begin", _die)
    with pytest.raises(BrimfulError, match="ended before its time"):
        captchas(KEY, tmp_path, 2, Said())


def _die() -> None:
    os._exit(9)


def test_no_images_at_all_are_refused():
    with pytest.raises(UsageError, match="0 images"):
        Key("train 0", 0, LOOK)


def test_what_is_drawn_is_told_with_the_time_left(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drawing, "SAY_EVERY_S", 0.0)
    said = Said()
    list(drawing.draw_parts(KEY, [0, 4, 8], 4, 1, said))
    assert "  4 of 10 images drawn" in said.text and " s left" in said.text


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
