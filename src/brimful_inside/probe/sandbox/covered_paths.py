"""Which paths a trial's layer over the file system covers: the user's own, and neither the kernel's
nor caches nor temporary files."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from typing import Any, List, Optional, Set, Tuple

from brimful_inside.probe.context import own_script

# Python's own functions, kept before `python_files` replaces them in the os module.
_readlink, _getcwd = os.readlink, os.getcwd

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


class CoveredPaths:
    """Of one trial, whose layer lies below `root`."""

    def __init__(self, folder: str, root: str):
        self.lie_in(folder, root)
        self._temporary = tuple(
            {_below(os.path.realpath(p)) for p in (tempfile.gettempdir(), "/tmp", "/var/tmp")}
        )
        self._work = tuple(
            {_below(os.path.abspath(p)) for p in (self.working_folder(), *_script_folder())}
        )
        self._made_by_tempfile: Set[str] = set()

    def lie_in(self, folder: str, root: str) -> None:
        self.root = root
        self._passing = _passing_folders(folder)

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
