"""A folder of checkpoints: written so that whatever happens, a whole one is left.

A checkpoint is written into a folder aside (.writing-…), synced, and renamed, so that one under its
own name was whole when it got it. Old ones are renamed (.removing-…) before they are deleted. What
a killed writer left is removed at the next start. Names carry the step and the number of the save,
which orders them: step-0000000500-save-00012.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from brimful.errors import (
    BrimfulError,
    CheckpointDamaged,
    CheckpointUnreadable,
    DiskFull,
    UsageError,
)
from brimful.units import counted
from brimful_train.checkpoints import checkpoint as whole
from brimful_train.checkpoints.checkpoint import Disk, Loaded
from brimful_train.config import CheckpointConfig

_NAME = re.compile(r"step-(\d+)-save-(\d+)")
_WRITING, _REMOVING, _LOCK = ".writing-", ".removing-", ".lock"


class Checkpoints:
    """The checkpoints in `folder`, which the first save makes. One process saves (rank 0); any
    number may read.

    `warn` gets a sentence for each damaged checkpoint, when it is first met, and for each folder
    that could not be removed.
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointConfig,
        warn: Callable[[str], None],
        disk: Disk | None = None,
    ):
        self.folder = Path(folder)
        self.config = config
        self._warn = warn
        self._disk = disk or Disk()
        self._known: dict[Path, Kept | None] = {}  # None: neither ours to count nor to remove
        self._verified: set[Path] = set()  # whole to the last byte
        self._training: int | None = (
            None  # the number of its first save; None: not known before the first save
        )
        if self._leftovers():
            with contextlib.suppress(OSError), self._lock(wait=False) as is_mine:
                # Where another process is writing, its half-written folder is no leftover.
                if is_mine:
                    self._remove_leftovers()

    # --- writing ---

    def save(
        self, state: Mapping[str, Any], *, step: int, score: float | None, best: str = "min"
    ) -> Path:
        """Writes a checkpoint, then removes those that are too many, and returns its folder.

        score: of the evaluation at this step, None where there was none. best: whether its "min" or
        its "max" is best. Raises DiskFull, which names what is left, and BrimfulError where the
        folder cannot be written otherwise.
        """
        score = None if score is None else float(score)
        try:
            self._make_own_folder()
            with self._lock(wait=True):
                self._remove_leftovers()
                try:
                    path = self._write(state, step, score, best)
                except OSError as error:
                    if not (DiskFull.caused(error) and self._make_room()):
                        raise
                    path = self._write(state, step, score, best)
                self._prune(self.config.keep_last)
                return path
        except OSError as error:
            raise self._unwritable(error, step) from error

    def _write(self, state: Mapping[str, Any], step: int, score: float | None, best: str) -> Path:
        number = max(map(_save_of, self._paths()), default=0) + 1
        path = self.folder / f"step-{step:010d}-save-{number:05d}"
        aside = self.folder / f"{_WRITING}{path.name}"
        try:
            training = self._training or self._training_before() or number
            whole.write(
                self._disk, aside, state, step=step, score=score, best=best, training=training
            )
            self._disk.rename(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self._disk.remove(aside)
            raise
        self._disk.sync(self.folder)
        self._training = training
        self._known[path] = Kept(path, score, best, training)
        self._verified.add(path)
        return path

    def _training_before(self) -> int | None:
        """That of the newest whole checkpoint in the folder, unless config.resume names another way
        to begin.
        """
        if self.config.resume != "auto":
            return None
        found = map(self._kept, self._newest_first())
        return next((one.training for one in found if one is not None and one.whole), None)

    def _make_room(self) -> bool:
        """Removes those that the next save would have removed, if one that is whole to the last
        byte stays. Whether any was.
        """
        for path in self._newest_first():
            with contextlib.suppress(CheckpointUnreadable):
                self._verify(path)
                return self._prune(max(1, self.config.keep_last - 1)) > 0
        return False

    def _verify(self, path: Path) -> None:
        if path not in self._verified:
            try:
                whole.verify(path)
            except CheckpointDamaged as error:
                self._set_damaged(path, error)
                raise
            self._verified.add(path)

    def _prune(self, keep_last: int) -> int:
        found = [one for path in self._paths() if (one := self._kept(path)) is not None]
        return sum(
            self._removed(one.path)
            for one in to_remove(found, keep_last=keep_last, keep_best=self.config.keep_best)
        )

    def _removed(self, path: Path) -> bool:
        aside = self.folder / f"{_REMOVING}{path.name}"
        try:
            self._disk.rename(path, aside)
            self._known.pop(path, None)
            self._disk.remove(aside)
        except OSError as error:
            self._warn(
                f"{path} is no longer needed and could not be removed: {error.strerror} "
                f"({error.filename})."
            )
            return False
        return True

    def _make_own_folder(self) -> None:
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            self._disk.sync(path.parent)

    def _leftovers(self) -> list[Path]:
        return [*self.folder.glob(f"{_WRITING}*"), *self.folder.glob(f"{_REMOVING}*")]

    def _remove_leftovers(self) -> None:
        for path in self._leftovers():
            try:
                self._disk.remove(path)
            except OSError as error:
                self._warn(
                    f"{path} was left by a killed writer and could not be removed: "
                    f"{error.strerror} ({error.filename})."
                )

    @contextlib.contextmanager
    def _lock(self, *, wait: bool) -> Iterator[bool]:
        """Held while a checkpoint is written; the kernel releases it when the writer dies. Whether
        it is held.
        """
        with (self.folder / _LOCK).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass  # a file system without locks: one writer a folder is what the engine has
            yield True

    def _unwritable(self, error: OSError, step: int) -> BrimfulError:
        kept = ", ".join(
            str(path) for path in self._newest_first() if (one := self._kept(path)) and one.whole
        )
        kept = kept or "no checkpoint; none was written before"
        if DiskFull.caused(error):
            return DiskFull(
                str(self.folder),
                kept,
                f"The disk is full: the checkpoint of step {step} could not be written to "
                f"{self.folder}.",
                "Free some space or have checkpoints written to another disk, and go on from the "
                "newest one.",
            )
        return BrimfulError(
            f"The checkpoint of step {step} could not be written to {self.folder}: "
            f"{error.strerror} ({error.filename}).",
            f"Kept: {kept}",
            "Make the folder writable or choose another one, and go on from the newest checkpoint.",
        )

    # --- reading ---

    def resume(self, device: str | torch.device = "cpu") -> Loaded | None:
        """The checkpoint that config.resume names: the newest whole one, none, or the one at a
        path.
        """
        if self.config.resume == "no":
            self._warn_of_others()
            return None
        if self.config.resume == "auto":
            return self.newest(device)
        loaded = self.load(Path(self.config.resume), device)
        if self._training is None:  # it lies elsewhere
            self._warn_of_others()
        return loaded

    def newest(self, device: str | torch.device = "cpu") -> Loaded | None:
        """The newest whole checkpoint; None only where there is none at all. Damaged ones are
        warned about and skipped.

        Raises CheckpointDamaged where every one is damaged, OtherFormat and CheckpointUnreadable
        for one that may be whole.
        """
        loaded = self._first_whole(self._newest_first(), device)
        if loaded is not None:
            self._go_on_from(loaded.folder)
        return loaded

    def best(self, device: str | torch.device = "cpu") -> Loaded | None:
        """The whole checkpoint with the best score of the training that the newest one is of; None
        where none has a score.

        Warns and raises as `newest`.
        """
        left = [one for path in self._newest_first() if (one := self._kept(path)) is not None]
        ordered = []
        while winner := best_of(left):
            ordered.append(winner.path)
            left.remove(winner)
        return self._first_whole(ordered, device)

    def load(self, path: Path, device: str | torch.device = "cpu") -> Loaded:
        """The checkpoint in the folder `path`, wherever it lies. Raises UsageError where there is
        none, else as `newest`.
        """
        path = Path(path)
        with whole.reading(path):
            if not path.is_dir():
                raise UsageError(f"There is no checkpoint at {path}.", suggestion=self._others())
            if not (path / whole.INDEX).exists():
                raise UsageError(
                    f"{path} is no checkpoint: it has no {whole.INDEX}.", suggestion=self._others()
                )
        loaded = whole.read(path, device)
        self._go_on_from(path)
        return loaded

    def _warn_of_others(self) -> None:
        paths = self._newest_first()
        if paths:
            stay = f"the last {self.config.keep_last}" + (
                " and the best" if self.config.keep_best else ""
            )
            self._warn(
                f"{self.folder} holds {counted(len(paths), 'checkpoint')} of another training, "
                "the newest of step "
                f"{_step_of(paths[0]):,}. THEY WILL BE REMOVED as this training writes its own, "
                f"of which {stay} stay. "
                "To keep them, move them away now or choose another folder."
            )

    def _go_on_from(self, path: Path) -> None:
        """What is saved from now on is of the same training as this checkpoint, if it is one of the
        folder.
        """
        ours = path.resolve().parent == self.folder.resolve() and _NAME.fullmatch(path.name)
        one = self._kept(self.folder / path.name) if ours else None
        self._training = one.training if one is not None and one.whole else None

    def _first_whole(self, paths: list[Path], device: str | torch.device) -> Loaded | None:
        wrong = []
        for path in paths:
            try:
                loaded = whole.read(path, device)
            except CheckpointDamaged as error:
                self._set_damaged(path, error)
                wrong.append(str(error))
                continue
            self._verified.add(path)
            return loaded
        if not wrong:
            return None
        raise CheckpointDamaged(
            f"None of the {len(wrong)} checkpoints in {self.folder} is whole. {' '.join(wrong)}",
            "Training does not begin anew unless it is asked to.",
            'Copy one back from elsewhere, or set config.checkpoints.resume to "no" to begin anew.',
        )

    def _others(self) -> str:
        names = ", ".join(str(path) for path in self._newest_first())
        return f"These are there: {names}." if names else f"There is none in {self.folder} either."

    # --- what is there ---

    def _paths(self) -> list[Path]:
        if not self.folder.exists():
            return []
        return [
            path for path in self.folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()
        ]

    def _newest_first(self) -> list[Path]:
        try:
            return sorted(self._paths(), key=_save_of, reverse=True)
        except OSError as error:
            raise CheckpointUnreadable(
                f"{self.folder} cannot be read: {error.strerror}.",
                "There may be checkpoints in it.",
                "Make it a folder that this user may read (chmod, chown), or choose another one.",
            ) from error

    def _kept(self, path: Path) -> Kept | None:
        if path not in self._known:
            try:
                facts = whole.read_facts(path)
                self._known[path] = Kept(path, facts.score, facts.best, facts.training)
            except CheckpointDamaged as error:
                self._set_damaged(path, error)
            except CheckpointUnreadable:
                self._known[path] = None
        return self._known[path]

    def _set_damaged(self, path: Path, error: CheckpointDamaged) -> None:
        known = self._known.get(path)
        if known is None or known.whole:
            self._warn(f"{error} The checkpoint of step {_step_of(path)} is skipped.")
        self._known[path] = Kept(path, None, whole=False)
        self._verified.discard(path)


def _step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def _save_of(path: Path) -> int:
    return int(path.name.split("-")[3])


@dataclass(frozen=True)
class Kept:
    """A checkpoint on the disk. `best`: whether the "min" or the "max" of its training's scores is
    the best one.
    """

    path: Path
    score: float | None
    best: str = "min"
    # the number of its training's first save: a training that began anew in the folder has another
    training: int = 1
    whole: bool = True

    @property
    def save(self) -> int:
        """The larger is the newer. The step does not show that: who goes on from an older one
        writes smaller steps later.
        """
        return _save_of(self.path)


def best_of(found: Iterable[Kept]) -> Kept | None:
    """The whole one with the best score, of the training that the newest one is of; of equal ones
    the oldest.

    None where none of these has a score that is a number.
    """
    present = [one for one in found if one.whole]
    newest = max(present, key=lambda one: one.save, default=None)
    if newest is None:
        return None
    sign = 1 if newest.best == "min" else -1
    scored = [
        one
        for one in present
        if one.training == newest.training and one.score is not None and not math.isnan(one.score)
    ]
    return min(scored, key=lambda one: (sign * (one.score or 0.0), one.save), default=None)


def to_remove(found: Sequence[Kept], *, keep_last: int, keep_best: bool) -> list[Kept]:
    """All but the `keep_last` newest whole ones and, with `keep_best`, the best; oldest first.

    A damaged one does not count, and goes once there are `keep_last` whole ones newer than it.
    """
    newest = sorted((one for one in found if one.whole), key=lambda one: -one.save)[:keep_last]
    if len(newest) < keep_last:
        return []
    stay = {one.save for one in newest}
    if keep_best and (winner := best_of(found)) is not None:
        stay.add(winner.save)
    oldest = newest[-1].save
    return sorted(
        (one for one in found if one.save not in stay and one.save < oldest),
        key=lambda one: one.save,
    )
