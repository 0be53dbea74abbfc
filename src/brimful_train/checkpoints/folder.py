"""A folder of checkpoints: written so that whatever happens, a whole one is left.

A checkpoint is written into a folder aside (.writing-…), synced, and renamed, so that one under its
own name was whole when it got it. Old ones are renamed (.removing-…) before they are deleted. What
a killed writer left is removed at the next save. Names carry the step and the number of the save,
which orders them: step-0000000500-save-00012.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
_WRITING, _REMOVING = ".writing-", ".removing-"


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
        # the number of its first save; None: not known before the first save
        self._training: int | None = None

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
            self._make_folder()
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
            there = [str(kept.path) for kept in self._all_kept() if kept.whole]
            raise _unwritable(self.folder, there, error, step) from error

    def _write(self, state: Mapping[str, Any], step: int, score: float | None, best: str) -> Path:
        number = max(map(_save_of, self._paths()), default=0) + 1
        path = self.folder / f"step-{step:010d}-save-{number:05d}"
        aside = self.folder / f"{_WRITING}{path.name}"
        try:
            training = self._training
            if training is None and self.config.resume == "auto":  # that of the newest whole one
                training = next((kept.training for kept in self._all_kept() if kept.whole), None)
            training = training or number
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
        return path

    def _make_room(self) -> bool:
        """Removes those that the next save would have removed, if one that is whole to the last
        byte stays. Whether any was.
        """
        for path in self._newest_first():
            try:
                whole.verify(path)
                return self._prune(max(1, self.config.keep_last - 1)) > 0
            except CheckpointDamaged as error:
                self._set_damaged(path, error)
            except CheckpointUnreadable:
                continue
        return False

    def _prune(self, keep_last: int) -> int:
        """How many were removed."""
        surplus = to_remove(self._all_kept(), keep_last=keep_last, keep_best=self.config.keep_best)
        return sum(self._removed(kept.path) for kept in surplus)

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

    def _make_folder(self) -> None:
        missing = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in missing:
            self._disk.sync(path.parent)

    def _remove_leftovers(self) -> None:
        for path in [*self.folder.glob(f"{_WRITING}*"), *self.folder.glob(f"{_REMOVING}*")]:
            try:
                self._disk.remove(path)
            except OSError as error:
                self._warn(
                    f"{path} was left by a killed writer and could not be removed: "
                    f"{error.strerror} ({error.filename})."
                )

    # --- reading ---

    def resume(self) -> Loaded | None:
        """The checkpoint that config.resume names: the newest whole one, none, or the one at a
        path.
        """
        if self.config.resume == "no":
            self._warn_of_others()
            return None
        if self.config.resume == "auto":
            return self.newest()
        loaded = self.load(Path(self.config.resume))
        if self._training is None:  # it lies elsewhere
            self._warn_of_others()
        return loaded

    def newest(self) -> Loaded | None:
        """The newest whole checkpoint; None only where there is none at all. Damaged ones are
        warned about and skipped.

        Raises CheckpointDamaged where every one is damaged, OtherFormat and CheckpointUnreadable
        for one that may be whole.
        """
        loaded = self._first_whole(self._newest_first())
        if loaded is not None:
            self._go_on_from(loaded.folder)
        return loaded

    def best(self) -> Loaded | None:
        """The whole checkpoint with the best score of the training that the newest one is of; None
        where none has a score.

        Warns and raises as `newest`.
        """
        left = self._all_kept()
        ordered = []
        while winner := best_of(left):
            ordered.append(winner.path)
            left.remove(winner)
        return self._first_whole(ordered)

    def load(self, path: Path) -> Loaded:
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
        loaded = whole.read(path)
        self._go_on_from(path)
        return loaded

    def _warn_of_others(self) -> None:
        if paths := self._newest_first():
            self._warn(_others_go(self.folder, paths, self.config))

    def _go_on_from(self, path: Path) -> None:
        """What is saved from now on is of the same training as this checkpoint, if it is one of the
        folder.
        """
        ours = path.resolve().parent == self.folder.resolve() and _NAME.fullmatch(path.name)
        kept = self._kept(self.folder / path.name) if ours else None
        self._training = kept.training if kept is not None and kept.whole else None

    def _first_whole(self, paths: list[Path]) -> Loaded | None:
        wrong = []
        for path in paths:
            try:
                return whole.read(path)
            except CheckpointDamaged as error:
                self._set_damaged(path, error)
                wrong.append(str(error))
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
        there = self.folder.iterdir() if self.folder.exists() else ()
        return [path for path in there if _NAME.fullmatch(path.name) and path.is_dir()]

    def _newest_first(self) -> list[Path]:
        try:
            return sorted(self._paths(), key=_save_of, reverse=True)
        except OSError as error:
            raise CheckpointUnreadable(
                f"{self.folder} cannot be read: {error.strerror}.",
                "There may be checkpoints in it.",
                "Make it a folder that this user may read (chmod, chown), or choose another one.",
            ) from error

    def _all_kept(self) -> list[Kept]:
        """Those that can be read and the damaged ones, newest first."""
        return [kept for path in self._newest_first() if (kept := self._kept(path)) is not None]

    def _kept(self, path: Path) -> Kept | None:
        if path not in self._known:
            try:
                index = whole.read_index(path)
                self._known[path] = Kept(path, index.score, index.best, index.training)
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


def _step_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def _others_go(folder: Path, newest_first: Sequence[Path], config: CheckpointConfig) -> str:
    best = " and the best" if config.keep_best else ""
    return (
        f"{folder} holds {counted(len(newest_first), 'checkpoint')} of another training, the "
        f"newest of step {_step_of(newest_first[0]):,}. THEY WILL BE REMOVED as this training "
        f"writes its own, of which the last {config.keep_last}{best} stay. To keep them, move "
        "them away now or choose another folder."
    )


def _unwritable(folder: Path, kept: Sequence[str], error: OSError, step: int) -> BrimfulError:
    paths = ", ".join(kept) or "no checkpoint; none was written before"
    if DiskFull.caused(error):
        return DiskFull(
            str(folder),
            paths,
            f"The disk is full: the checkpoint of step {step} could not be written to {folder}.",
            "Free some space or have checkpoints written to another disk, and go on from the "
            "newest one.",
        )
    return BrimfulError(
        f"The checkpoint of step {step} could not be written to {folder}: {error.strerror} "
        f"({error.filename}).",
        f"Kept: {paths}",
        "Make the folder writable or choose another one, and go on from the newest checkpoint.",
    )


def best_of(checkpoints: Iterable[Kept]) -> Kept | None:
    """The whole one with the best score, of the training that the newest one is of; of equal ones
    the oldest.

    None where none of these has a score that is a number.
    """
    present = [kept for kept in checkpoints if kept.whole]
    newest = max(present, key=lambda kept: kept.save, default=Kept(Path(), None))
    sign = 1 if newest.best == "min" else -1
    scored = [
        (sign * kept.score, kept.save, kept)
        for kept in present
        if kept.training == newest.training
        and kept.score is not None
        and not math.isnan(kept.score)
    ]
    return min(scored, default=(0, 0, None))[2]


def to_remove(checkpoints: Sequence[Kept], *, keep_last: int, keep_best: bool) -> list[Kept]:
    """All but the `keep_last` newest whole ones and, with `keep_best`, the best; oldest first.

    A damaged one does not count, and goes once there are `keep_last` whole ones newer than it.
    """
    ordered = sorted(checkpoints, key=lambda kept: kept.save)
    newest = [kept.save for kept in ordered if kept.whole][-keep_last:]
    if len(newest) < keep_last:
        return []
    best = best_of(checkpoints) if keep_best else None
    return [kept for kept in ordered if kept.save < newest[0] and kept != best]
