"""A layer over the file system: `kept_out/<absolute path>` in the trial's folder holds what a trial
wrote, and is read instead; `kept_out/.gone/<absolute path>` marks what it removed. All processes of
a trial share it through these files alone."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import tempfile
import time
from stat import S_ISDIR
from typing import Any, List, Optional, Set, Tuple

from brimful_inside.probe.context import own_script

# Python's own functions, kept before `python_files` replaces them in the os module.
_lstat, _stat, _listdir, _mkdir, _unlink, _rmdir = (
    os.lstat,
    os.stat,
    os.listdir,
    os.mkdir,
    os.unlink,
    os.rmdir,
)
_open, _close, _readlink, _getcwd = os.open, os.close, os.readlink, os.getcwd

MAX_COPIED_BYTES = 4 << 30
POLL_S = 0.05
MAX_LISTED = 200
CACHES = (
    *(
        "HF_HUB_CACHE",
        "HF_DATASETS_CACHE",
        "HF_MODULES_CACHE",
        "TORCH_HOME",
        "TORCH_EXTENSIONS_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
    ),
    *("TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "NLTK_DATA"),
)
# The kernel's links to folders of a process, and what lies there. A descriptor itself was opened
# through the layer.
KERNELS_LINK = re.compile(
    r"(/+proc/+[^/]+(?:/+task/+\d+)?/+(?:cwd|root|fd/+\d+(?=/))|/+dev/+fd/+\d+(?=/))(/.*)?"
)
_PREFIXES = ("//", "/proc/", "/dev/fd/")
# Below a temporary folder: what Python's tempfile, multiprocessing and compilers call their files.
TEMPORARY = re.compile(r"(tmp|pymp-|torch|triton|cuda|nvidia|\.)")


class Overlay:
    """The layer of one trial. `protects` says which paths it covers; every other path is left as it
    is.
    """

    def __init__(self, folder: str):
        self.lie_in(folder)
        self._temporary = tuple(
            {_below(os.path.realpath(p)) for p in (tempfile.gettempdir(), "/tmp", "/var/tmp")}
        )
        self._work = tuple(
            {_below(os.path.abspath(p)) for p in (self.working_folder(), *_script_folder())}
        )
        self._made_by_tempfile: Set[str] = set()

    def lie_in(self, folder: str) -> None:
        """The layer is that of the trial in `folder`, as it stands there."""
        self.folder = os.path.realpath(folder)
        self.root = os.path.join(self.folder, "kept_out")
        self._gone = os.path.join(self.root, ".gone")
        self._passing = _passing_folders(self.folder)
        self.written: List[
            str
        ] = []  # what the script wanted to write, as it named it, in this process
        self._loaded: Set[str] = set()
        self._is_used = False
        self._next_poll = 0.0

    # --- which paths ---

    def working_folder(self) -> str:
        """As the script knows it: one that the trial made lies in the layer, and the system knows
        it by that place.
        """
        folder = _getcwd()
        return folder[len(self.root) :] if self.lies_in_layer(folder) else folder

    def lies_in_layer(self, absolute: str) -> bool:
        return absolute.startswith(_below(self.root))

    def from_here(self, path: Any) -> Any:
        """The path; one that the system would look up in the layer, beside which the user's files
        do not show, made absolute: a relative one where the working folder lies there, and what
        goes by a link of the kernel to a folder."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return path
        if os.fsdecode(path).startswith(_PREFIXES):
            absolute = self._absolute(os.fsdecode(path))
            return absolute if self.protects(absolute) else path
        if os.path.isabs(path) or not self.lies_in_layer(_getcwd()):
            return path
        return os.path.abspath(path)

    def covered(self, path: Any, dir_fd: Optional[int] = None) -> Optional[str]:
        """The absolute path if the layer covers it; None for open descriptors and for all that
        passes.
        """
        if isinstance(path, int):
            return None
        try:
            text = os.fsdecode(path)
        except TypeError:
            return None  # not a path: the real function shall raise its own error
        if dir_fd is not None and not os.path.isabs(text):
            text = "/proc/self/fd/%d/%s" % (dir_fd, text)
        absolute = self._absolute(text)
        return absolute if self.protects(absolute) else None

    def _absolute(self, path: str) -> str:
        """As the script knows it: what lies below /proc/self/cwd is in the working folder."""
        absolute, before = os.path.abspath(path), ""
        if not absolute.startswith(_PREFIXES):
            return absolute
        while path != before:
            before = path
            match = KERNELS_LINK.fullmatch(path) or KERNELS_LINK.fullmatch(os.path.abspath(path))
            if match is not None:
                with contextlib.suppress(OSError):
                    folder = _readlink(match[1])
                    folder = folder[len(self.root) :] if self.lies_in_layer(folder) else folder
                    path = os.path.join(folder, (match[2] or "").lstrip(os.sep))
        return os.sep + os.path.abspath(path).lstrip(os.sep)

    def protects(self, absolute: str) -> bool:
        inside = absolute + os.sep
        if inside.startswith(self._passing):
            return False
        for folder in self._temporary:
            if inside.startswith(folder):
                top = folder + absolute[len(folder) :].split(os.sep, 1)[0]
                named_so = (
                    top == folder
                    or TEMPORARY.match(top[len(folder) :])
                    or top in self._made_by_tempfile
                )
                if named_so and not any(
                    work.startswith(_below(top)) for work in self._work if top != folder
                ):
                    return False
        return True

    def holds_what_passes(self, absolute: str) -> bool:
        """Whether a folder by this name would hold one that passes: a cache is made with the
        folders above it.
        """
        return any(folder.startswith(_below(absolute)) for folder in self._passing)

    def made_by_tempfile(self, absolute: str) -> None:
        for folder in self._temporary:
            if absolute.startswith(folder):
                self._made_by_tempfile.add(folder + absolute[len(folder) :].split(os.sep, 1)[0])

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
        """torch.load read a file of the user's."""
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
        return self.lies_in_layer(absolute) or (
            isinstance(error, FileNotFoundError)
            and (_exists(absolute) or _exists(self.upper(absolute)))
        )


def _below(folder: str) -> str:
    return folder.rstrip(os.sep) + os.sep


def _passing_folders(trial: str) -> Tuple[str, ...]:
    """The trial's own folder, the kernel's, and caches of downloads and of compiled code: none is
    the user's work.
    """
    home = os.path.expanduser("~")
    cache = os.environ.get("XDG_CACHE_HOME", os.path.join(home, ".cache"))
    folders = [
        trial,
        "/dev",
        "/proc",
        "/sys",
        os.environ.get("HF_HOME", os.path.join(cache, "huggingface")),
    ]
    folders += [os.environ[name] for name in CACHES if os.environ.get(name)]
    folders += [
        os.path.join(cache, name)
        for name in ("torch", "torch_extensions", "matplotlib", "pip", "triton", "kagglehub")
    ]
    folders += [
        os.path.join(home, name) for name in (".triton", ".nv", ".config/matplotlib", "nltk_data")
    ]
    return tuple(_below(os.path.abspath(path)) for path in folders)


def _script_folder() -> List[str]:
    """The folder of the script that this process runs, if it runs one. sys.argv is not there yet at
    this point.
    """
    script = own_script()
    path = os.path.abspath(script)
    is_users = (
        script.endswith(".py")
        and "site-packages" not in script
        and not path.startswith(_below(sys.prefix))
    )
    return [os.path.dirname(path)] if is_users else []


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
