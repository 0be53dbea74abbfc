"""A layer over the file system: `kept_out/<absolute path>` in the trial's folder holds what a trial
wrote, and is read instead; `kept_out/.gone/<absolute path>` marks what it removed. All processes of
a trial share it through these files alone."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from stat import S_ISDIR
from typing import List, Set, Tuple

from brimful_inside.probe.sandbox.covered_paths import CoveredPaths

# Python's own functions, kept before `python_files` replaces them in the os module.
_lstat, _stat, _listdir, _mkdir, _unlink, _rmdir = (
    os.lstat,
    os.stat,
    os.listdir,
    os.mkdir,
    os.unlink,
    os.rmdir,
)
_open, _close = os.open, os.close

MAX_COPIED_BYTES = 4 << 30
POLL_S = 0.05
MAX_LISTED = 200


class Overlay:
    """The layer of one trial. `paths` says what it covers; every other path is left as it is."""

    def __init__(self, folder: str):
        self._begin(folder)
        self.paths = CoveredPaths(self.folder, self.root)

    def lie_in(self, folder: str) -> None:
        """The layer is that of the trial in `folder`, as it stands there."""
        self._begin(folder)
        self.paths.lie_in(self.folder, self.root)

    def _begin(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.root = os.path.join(self.folder, "kept_out")
        self._gone = os.path.join(self.root, ".gone")
        self.written: List[
            str
        ] = []  # what the script wanted to write, as it named it, in this process
        self._loaded: Set[str] = set()
        self._is_used = False
        self._next_poll = 0.0

    # --- reading ---

    @property
    def is_used(self) -> bool:
        """Whether anything was written yet, by this process or another one (for which this polls
        now and then).
        """
        if not self._is_used and time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + POLL_S
            self._is_used = _exists(self.root)
        return self._is_used

    def upper(self, absolute: str) -> str:
        return self.root + absolute

    def _mark(self, absolute: str) -> str:
        return self._gone + self.upper(absolute)[len(self.root) :] + ".gone"

    def is_hidden(self, absolute: str) -> bool:
        """Whether the user's file was removed as far as the trial is concerned, alone or with a
        folder above it.
        """
        if not self.any_hidden:
            return False
        while not _exists(self._mark(absolute)):
            above = os.path.dirname(absolute)
            if above == absolute:
                return False
            absolute = above
        return True

    @property
    def any_hidden(self) -> bool:
        return _exists(self._gone)

    def lies_below(self, absolute: str) -> bool:
        """Whether the user's own file or folder is there and not removed. os.path does not know: it
        sees the layer as well.
        """
        return not self.is_hidden(absolute) and _exists(absolute)

    def where(self, absolute: str) -> str:
        """The path to read in place of `absolute`. Where nothing is to be seen, one that does not
        exist.
        """
        upper = self.upper(absolute)
        if _exists(upper):
            # by another process, perhaps just now: what is read next must show the same
            self._is_used = True
            return upper
        return upper if self.is_hidden(absolute) else absolute

    def is_visible(self, absolute: str) -> bool:
        return _exists(self.where(absolute))

    def names(self, absolute: str) -> Tuple[List[str], Set[str]]:
        """The names in a folder as the trial sees it, and those of them that lie in the layer."""
        upper = self.upper(absolute)
        written = set(_listdir(upper)) if _exists(upper) else set()
        if absolute == os.sep:
            written.discard(".gone")
        if self.is_hidden(absolute) or not _exists(absolute):
            return sorted(written), written
        below = [
            n
            for n in _listdir(absolute)
            if n not in written and not self.is_hidden(os.path.join(absolute, n))
        ]
        return below + sorted(written), written

    # --- writing ---

    def to_write(self, absolute: str, keeps_content: bool) -> str:
        """The path to write in place of `absolute`, with the user's content copied there if it is
        to be kept. Where the folder above does not exist for the script, the path returned has none
        either, so that writing fails; with the script's own path, where the user has none."""
        upper = self.upper(absolute)
        if not self.make_parent(absolute):
            return upper if _is_folder(os.path.dirname(absolute)) else absolute
        self.list_written(absolute)
        if (
            keeps_content
            and not _exists(upper)
            and not self.is_hidden(absolute)
            and _exists(absolute)
        ):
            self.copy_up(absolute)
        return upper

    def make_parent(self, absolute: str) -> bool:
        above = os.path.dirname(absolute)
        if not _is_folder(self.where(above)):
            return False
        self._make_folders(self.upper(above))
        return True

    def _make_folders(self, path: str) -> None:
        if not _exists(path):
            self._make_folders(os.path.dirname(path))
            with contextlib.suppress(FileExistsError):
                _mkdir(path)
        self._is_used = True

    def copy_up(self, absolute: str) -> None:
        """The user's file or folder, copied into the layer. Raises PermissionError for what is too
        large to be copied.
        """
        upper = self.upper(absolute)
        if _is_folder(absolute):
            self._make_folders(upper)
            for name in _listdir(absolute):
                if not self.is_hidden(os.path.join(absolute, name)) and not _exists(
                    os.path.join(upper, name)
                ):
                    self.copy_up(os.path.join(absolute, name))
            return
        if _stat(absolute).st_size > MAX_COPIED_BYTES:
            raise PermissionError(
                errno.EPERM, "a trial of brimful may not write into a file this large", absolute
            )
        shutil.copy2(absolute, upper)
        mode = _stat(upper).st_mode
        if not mode & 0o200:  # a copy can be written, even where the original cannot
            os.chmod(upper, mode | 0o200)

    def hide(self, absolute: str) -> None:
        """The user's file or folder is gone as far as the trial is concerned."""
        mark = self._mark(absolute)
        self._make_folders(os.path.dirname(mark))
        _close(_open(mark, os.O_WRONLY | os.O_CREAT, 0o644))

    def remove_upper(self, absolute: str) -> None:
        upper = self.upper(absolute)
        if _is_folder(upper) and not os.path.islink(upper):
            for name in _listdir(upper):
                self.remove_upper(os.path.join(absolute, name))
            _rmdir(upper)
        elif _exists(upper):
            _unlink(upper)

    def list_written(self, absolute: str) -> None:
        if absolute not in self.written and len(self.written) < MAX_LISTED:
            self.written.append(absolute)

    def loaded(self, absolute: str) -> None:
        if len(self._loaded) < MAX_LISTED:
            self._loaded.add(absolute)

    def resumed_from(self) -> List[str]:
        """Files that the script loads as it found them and writes as well: it resumes from where
        they were written.
        """
        return sorted(self._loaded.intersection(self.written))

    def is_why(self, error: OSError, path: str) -> bool:
        """Whether a call failed because of the layer: `path` is a place in it, or is not found and
        there all the same, as the user's file or as one that the trial wrote."""
        absolute = os.path.abspath(path)
        return self.paths.lies_in_layer(absolute) or (
            isinstance(error, FileNotFoundError)
            and (_exists(absolute) or _exists(self.upper(absolute)))
        )


def _exists(path: str) -> bool:
    try:
        _lstat(path)
        return True
    except (OSError, ValueError):
        return False


def _is_folder(path: str) -> bool:
    try:
        return S_ISDIR(_stat(path).st_mode)
    except (OSError, ValueError):
        return False
