"""Whatever moment a writer is killed at, and even if the power goes: the newest is whole, and no
older than the last save.
"""

import os

import pytest

from brimful_train.checkpoints.checkpoint import Disk
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.config import CheckpointConfig
from tests.brimful_train.checkpoints.states import same, training_state

pytestmark = pytest.mark.heavy  # processes of their own

SCORES = [0.5, 0.2, 0.9, 0.4, 0.3]


class Killed(BaseException):
    """The process is no more."""


class DyingDisk(Disk):
    """Works for `left` operations and does the next one by half; then nothing changes on it any
    more.
    """

    def __init__(self, left, share):
        self.left, self.share, self.unsynced, self.unsynced_names = left, share, set(), []

    def _step(self, half=lambda: None):
        self.left -= 1
        if self.left == 0:
            half()
        if self.left <= 0:
            raise Killed

    def make_folder(self, path):
        self._step()
        super().make_folder(path)

    def write_tensors(self, path, tensors, metadata):
        self._write(path, lambda: Disk.write_tensors(self, path, tensors, metadata))

    def write_bytes(self, path, content):
        self._write(path, lambda: Disk.write_bytes(self, path, content))

    def _write(self, path, write):
        def half():
            write()
            cut(path, self.share)

        self._step(half)
        write()
        self.unsynced.add(path)

    def sync(self, path):
        self._step()
        super().sync(path)
        self.unsynced.discard(path)
        self.unsynced_names = [(old, new) for old, new in self.unsynced_names if new.parent != path]

    def rename(self, old, new):
        self._step()
        super().rename(old, new)
        self.unsynced = {
            new / path.relative_to(old) if path.is_relative_to(old) else path
            for path in self.unsynced
        }
        self.unsynced_names.append((old, new))

    def remove(self, folder):
        def half():
            for path in sorted(folder.iterdir())[: 1 + int(self.share * 2)]:
                path.unlink()

        self._step(half if folder.exists() else lambda: None)
        super().remove(folder)

    def lose_power(self):
        """Loses what was not synced: names go back to what they were, files are cut."""
        for old, new in reversed(self.unsynced_names):
            if new.exists() and not old.exists():
                new.rename(old)
                self.unsynced = {
                    old / path.relative_to(new) if path.is_relative_to(new) else path
                    for path in self.unsynced
                }
        for path in self.unsynced:
            if path.exists():
                cut(path, self.share)


def cut(path, share):
    os.truncate(path, int(share * path.stat().st_size))


def train(folder, disk, done):
    """Saves some steps, and reports each save that came back to `done`."""
    checkpoints = Checkpoints(folder, CheckpointConfig(keep_last=2), lambda _: None, disk)
    for step, score in enumerate(SCORES, start=1):
        checkpoints.save(training_state(step), step=step, score=score)
        done(step)


def killed_at(folder, number, share, power):
    """The steps whose save came back before the writer died at operation `number`."""
    disk, done = DyingDisk(number, share), []
    with pytest.raises(Killed):
        train(folder, disk, done.append)
    if power:
        disk.lose_power()
    return done


def check(folder, done):
    warnings = []
    checkpoints = Checkpoints(folder, CheckpointConfig(keep_last=2), warnings.append)
    loaded = checkpoints.newest()
    if done:
        assert loaded is not None and loaded.step in (done[-1], done[-1] + 1), (loaded, done)
        best = min((SCORES[step - 1], step) for step in done)[1]
        assert checkpoints.best().step in (best, done[-1] + 1)
    assert loaded is None or same(loaded.state, training_state(loaded.step))
    checkpoints.save(training_state(9), step=9, score=None)
    assert checkpoints.newest().step == 9
    assert not list(folder.glob(".writing-*")) and not list(folder.glob(".removing-*"))
    return warnings


@pytest.fixture(scope="module")
def total(tmp_path_factory):
    disk = DyingDisk(1 << 30, 0)
    train(tmp_path_factory.mktemp("count") / "all", disk, print)
    count = (1 << 30) - disk.left
    assert count >= 40  # five saves of eight operations and more
    return count


@pytest.mark.parametrize(("share", "power"), [(0.0, False), (0.7, False), (0.5, True)])
def test_killed_at_each_operation_in_turn_the_newest_is_whole_and_no_older_than_the_last_save(
    tmp_path, total, share, power
):
    for number in range(1, total + 1):
        folder = tmp_path / str(number)
        warnings = check(folder, killed_at(folder, number, share, power))
        assert power or warnings == [], "nothing is damaged under its own name"
