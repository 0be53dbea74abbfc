"""Puts the overlay under Python's own file calls: open, and what the os and shutil modules do with paths.

Each replacement asks the overlay for the path to use and calls the real function with it. Paths that the overlay does not
cover, open descriptors and things that are no paths go to the real function as they are.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import shutil
import sys
from typing import Any, Callable, Dict, Optional

from brimful_inside.probe.sandbox.listing import listdir_over, scandir_over
from brimful_inside.probe.sandbox.overlay import Overlay

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SETS = ("supports_dir_fd", "supports_follow_symlinks", "supports_fd", "supports_effective_ids")


# Modules of Python's that may have taken functions of os before they were replaced.
_HOLDERS = ("pathlib", "pathlib._local", "pathlib._abc", "pathlib._os", "glob", "shutil", "tempfile", "tarfile", "zipfile")


class Replacement:
    """A function in place of a built-in one. Like a built-in, and unlike a function, it does not bind when a class holds it."""

    def __init__(self, function: Callable[..., Any], original: Any, module: str):
        self.__name__ = self.__qualname__ = original.__name__
        self.__doc__ = original.__doc__
        self.__module__ = module
        self.__wrapped__ = original
        self._call = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.__name__  # pickled by name, as a built-in is

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def put_under_python(overlay: Overlay) -> None:
    """From here on, in this process and those forked from it, files are seen and written through `overlay`."""
    taken = {id(io.open): _put_open(overlay)}
    for name in ("stat", "lstat", "access", "readlink", "getxattr", "listxattr", "statvfs"):
        taken.update(_replace(name, functools.partial(_reader, overlay)))
    for name in ("chmod", "utime", "truncate", "chown", "lchown", "setxattr", "removexattr", "lchmod", "chflags"):
        taken.update(_replace(name, functools.partial(_changer, overlay)))
    for name in ("mkfifo", "mknod"):
        taken.update(_replace(name, functools.partial(_maker, overlay)))
    for name, make in _MAKERS.items():
        taken.update(_replace(name, functools.partial(make, overlay)))
    shutil.rmtree = _rmtree(overlay, shutil.rmtree)
    _hand_out(taken)


def _replace(name: str, make: Callable[[Any], Any]) -> Dict[int, Any]:
    original = getattr(os, name, None)
    if original is None:
        return {}
    replacement = Replacement(make(original), original, "os")
    for known in _SETS:
        members = getattr(os, known, None)
        if members is not None and original in members:
            members.add(replacement)
    setattr(os, name, replacement)
    return {id(original): replacement}


def _hand_out(taken: Dict[int, Any]) -> None:
    """Gives the replacements to those who hold the originals."""
    for module in filter(None, map(sys.modules.get, _HOLDERS)):
        classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
        for holder in (module, *classes):
            for name, value in list(vars(holder).items()):
                held = value.__func__ if isinstance(value, staticmethod) else value
                if id(held) in taken:
                    setattr(holder, name, taken[id(held)])


def _put_open(overlay: Overlay) -> Any:
    original = builtins.open

    def open(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(mode, str):
            file = redirected(overlay, file, any(letter in mode for letter in "wax+"), "w" not in mode, "x" in mode)
        return original(file, mode, *args, **kwargs)

    replacement = Replacement(open, original, "io")
    builtins.open = replacement  # type: ignore[assignment]
    io.open = replacement  # type: ignore[assignment]
    return replacement


def _os_open(overlay: Overlay, original: Any) -> Any:
    def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Optional[int] = None) -> int:
        writes = bool(flags & WRITING)
        if writes and sys._getframe(2).f_globals.get("__name__") == "tempfile":
            overlay.made_by_tempfile(os.path.abspath(os.fsdecode(path)))
        exclusive = bool(flags & os.O_EXCL and flags & os.O_CREAT)
        creates = bool(flags & os.O_CREAT)
        other = redirected(overlay, path, writes, not flags & os.O_TRUNC, exclusive, dir_fd, creates)
        return original(path, flags, mode, dir_fd=dir_fd) if other is path else original(other, flags, mode)

    return open


def redirected(
    overlay: Overlay,
    path: Any,
    writes: bool,
    keeps: bool,
    exclusive: bool = False,
    dir_fd: Optional[int] = None,
    creates: bool = True,
) -> Any:
    """The path to open in place of `path`, which is given back itself where the overlay has no say."""
    if not writes and not overlay.is_used:
        return path
    absolute = overlay.covered(path, dir_fd)
    if absolute is None:
        return path
    seen = overlay.where(absolute)
    if not writes or _is_dir(seen):
        return seen if seen != absolute else path
    if exclusive and overlay.is_visible(absolute):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if not creates and not overlay.is_visible(absolute):
        return seen
    return overlay.to_write(absolute, keeps)


def _is_dir(path: str) -> bool:
    return os.path.isdir(path)


def _reader(overlay: Overlay, original: Any) -> Any:
    def read(path: Any, *args: Any, **kwargs: Any) -> Any:
        if not overlay.is_used:
            return original(path, *args, **kwargs)
        absolute = overlay.covered(path, kwargs.get("dir_fd"))
        if absolute is None:
            return original(path, *args, **kwargs)
        where = overlay.where(absolute)
        if where == absolute:
            return original(path, *args, **kwargs)
        kwargs.pop("dir_fd", None)
        return original(where, *args, **kwargs)

    return read


def _changer(overlay: Overlay, original: Any) -> Any:
    """Changes what is there: the user's file is copied into the layer first."""

    def change(path: Any, *args: Any, **kwargs: Any) -> Any:
        absolute = overlay.covered(path, kwargs.get("dir_fd"))
        if absolute is None:
            return original(path, *args, **kwargs)
        kwargs.pop("dir_fd", None)
        if not overlay.is_visible(absolute):
            return original(overlay.upper(absolute), *args, **kwargs)
        return original(overlay.to_write(absolute, keeps_content=True), *args, **kwargs)

    return change


def _maker(overlay: Overlay, original: Any) -> Any:
    def make(path: Any, *args: Any, **kwargs: Any) -> Any:
        absolute = overlay.covered(path, kwargs.pop("dir_fd", None))
        return original(path if absolute is None else _new(overlay, absolute, path), *args, **kwargs)

    return make


def _new(overlay: Overlay, absolute: str, path: Any) -> str:
    if overlay.is_visible(absolute):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    return overlay.to_write(absolute, keeps_content=False)


def _mkdir(overlay: Overlay, original: Any) -> Any:
    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: Optional[int] = None) -> None:
        if sys._getframe(2).f_globals.get("__name__") == "tempfile":
            overlay.made_by_tempfile(os.path.abspath(os.fsdecode(path)))
        absolute = overlay.covered(path, dir_fd)
        if absolute is None:
            return original(path, mode, dir_fd=dir_fd)
        return original(_new(overlay, absolute, path), mode)

    return mkdir


def _unlink(overlay: Overlay, original: Any) -> Any:
    def unlink(path: Any, *, dir_fd: Optional[int] = None) -> None:
        absolute = overlay.covered(path, dir_fd)
        if absolute is None:
            return original(path, dir_fd=dir_fd)
        upper = overlay.upper(absolute)
        lower = overlay.lies_below(absolute)
        if os.path.isdir(overlay.where(absolute)) and not os.path.islink(overlay.where(absolute)):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if os.path.lexists(upper) or not lower:
            original(upper)
        if lower:
            overlay.hide(absolute)
        return None

    return unlink


def _rmdir(overlay: Overlay, original: Any) -> Any:
    def rmdir(path: Any, *, dir_fd: Optional[int] = None) -> None:
        absolute = overlay.covered(path, dir_fd)
        if absolute is None:
            return original(path, dir_fd=dir_fd)
        where = overlay.where(absolute)
        if not os.path.isdir(where):
            return original(where)
        if overlay.names(absolute)[0]:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        _take_away(overlay, absolute)
        return None

    return rmdir


def _take_away(overlay: Overlay, absolute: str) -> None:
    lower = overlay.lies_below(absolute)
    overlay.remove_upper(absolute)
    if lower:
        overlay.hide(absolute)


def _rename(overlay: Overlay, original: Any) -> Any:
    """Within the layer this is a copy and a removal: the user's own file stays where it is."""

    def rename(src: Any, dst: Any, *, src_dir_fd: Optional[int] = None, dst_dir_fd: Optional[int] = None) -> None:
        source, target = overlay.covered(src, src_dir_fd), overlay.covered(dst, dst_dir_fd)
        if source is None and target is None:
            return original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if source is not None:
            if not overlay.is_visible(source):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), src)
            overlay.to_write(source, keeps_content=True)
            if os.path.isdir(overlay.where(source)) and overlay.lies_below(source):
                overlay.copy_up(source)
        taken = os.fspath(src) if source is None else overlay.upper(source)
        put = os.fspath(dst) if target is None else _place(overlay, target, os.path.isdir(taken))
        _move(original, taken, put)
        if source is not None and overlay.lies_below(source):
            overlay.hide(source)
        return None

    return rename


def _place(overlay: Overlay, target: str, is_folder: bool) -> str:
    """Where a file or folder that takes the name `target` is put; a folder of that name below is not to shine through."""
    put = overlay.to_write(target, keeps_content=False)
    if is_folder and not overlay.is_hidden(target) and os.path.isdir(target):
        if overlay.names(target)[0]:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        overlay.hide(target)
    return put


def _move(original: Any, taken: Any, put: Any) -> None:
    try:
        original(taken, put)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(taken, put)  # the trial's folder is on another file system


def _symlink(overlay: Overlay, original: Any) -> Any:
    def symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: Optional[int] = None) -> None:
        absolute = overlay.covered(dst, dir_fd)
        if absolute is None:
            return original(src, dst, target_is_directory, dir_fd=dir_fd)
        meant = os.path.join(os.path.dirname(absolute), os.fsdecode(src))
        covered = overlay.covered(meant)
        return original(meant if covered is None else overlay.where(covered), _new(overlay, absolute, dst), target_is_directory)

    return symlink


def _link(overlay: Overlay, original: Any) -> Any:
    def link(src: Any, dst: Any, **kwargs: Any) -> None:
        source, target = overlay.covered(src, kwargs.get("src_dir_fd")), overlay.covered(dst, kwargs.get("dst_dir_fd"))
        if source is None and target is None:
            return original(src, dst, **kwargs)
        put = os.fspath(dst) if target is None else _new(overlay, target, dst)
        shutil.copy2(os.fspath(src) if source is None else overlay.where(source), put)  # a link would let writes through
        return None

    return link


def _chdir(overlay: Overlay, original: Any) -> Any:
    def chdir(path: Any) -> None:
        absolute = overlay.covered(path) if overlay.is_used else None
        if absolute is None or (os.path.isdir(absolute) and not overlay.is_hidden(absolute)):
            return original(path if absolute is None or not os.path.exists(absolute) else absolute)
        return original(overlay.where(absolute))

    return chdir


def _rmtree(overlay: Overlay, original: Any) -> Any:
    @functools.wraps(original)
    def rmtree(path: Any, *args: Any, **kwargs: Any) -> Any:
        absolute = overlay.covered(path, kwargs.get("dir_fd"))
        if absolute is None or not os.path.isdir(overlay.where(absolute)):
            return original(path, *args, **kwargs)
        return _take_away(overlay, absolute)

    return rmtree


_MAKERS = {
    "open": _os_open,
    "mkdir": _mkdir,
    "rmdir": _rmdir,
    "unlink": _unlink,
    "remove": _unlink,
    "rename": _rename,
    "replace": _rename,
    "listdir": listdir_over,
    "scandir": scandir_over,
    "symlink": _symlink,
    "link": _link,
    "chdir": _chdir,
}
