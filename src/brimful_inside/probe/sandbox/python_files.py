"""Patches Python's own file calls, so that they go through the overlay: open, and the functions of
os and shutil with paths. SECURITY.md says what is left."""

from __future__ import annotations

import abc
import builtins
import contextlib
import errno
import functools
import io
import os
import shutil
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional

from brimful_inside.probe.sandbox.overlay import Overlay

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SETS = ("supports_dir_fd", "supports_follow_symlinks", "supports_fd", "supports_effective_ids")
# What finds and reads modules keeps the functions that it has; so do we.
_KEEP_THEIRS = ("importlib", "brimful_inside")


class Replacement:
    """A function in place of a built-in one. Like a built-in, and unlike a function, it does not
    bind when a class holds it.
    """

    def __init__(self, function: Callable[..., Any], original: Any, module: str):
        self.__dict__.update(getattr(original, "__dict__", {}))
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


def patch_python_files(overlay: Overlay) -> None:
    """From here on, this process and those forked from it see and write files through `overlay`."""
    original = builtins.open
    replacement = Replacement(functools.partial(_open, overlay, original), original, "io")
    builtins.open = io.open = replacement  # type: ignore[assignment]
    file_io = _file_io(overlay, io.FileIO)
    replaced: Dict[int, Any] = {id(original): replacement, id(io.FileIO): file_io}
    io.FileIO = file_io  # type: ignore[misc]
    for name, function in _OF_THEIR_OWN.items():
        _replace(os, name, functools.partial(function, overlay), replaced)
    for functions, reads in ((_READING, True), (_WRITING, False)):
        for name, function in functions.items():
            _replace(os, name, functools.partial(_of_one_path, overlay, function, reads), replaced)
    _replace(shutil, "rmtree", functools.partial(_of_one_path, overlay, _rmtree, False), replaced)
    shutil._copyxattr = lambda *args, **kwargs: None  # type: ignore[attr-defined]
    _replace_in_holders(replaced)


def _replace(
    module: Any, name: str, function: Callable[..., Any], replaced: Dict[int, Any]
) -> None:
    """By `function(original, ...)`, where there is such a function."""
    original = getattr(module, name, None)
    if original is None:
        return
    replacement = Replacement(functools.partial(function, original), original, module.__name__)
    replaced[id(original)] = replacement
    for known in _SETS:
        members = getattr(os, known, set())
        if original in members:
            members.add(replacement)
    setattr(module, name, replacement)


def _replace_in_holders(replaced: Dict[int, Any]) -> None:
    """In the Python modules that are there already, and their classes, which hold an original."""
    modules = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None)]
    for module in modules:
        if module.__name__.partition(".")[0] in _KEEP_THEIRS:
            continue
        classes = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        for holder in (module, *classes):
            for name, value in list(vars(holder).items()):
                held = value.__func__ if isinstance(value, staticmethod) else value
                if id(held) in replaced:
                    with contextlib.suppress(AttributeError, TypeError):
                        setattr(holder, name, replaced[id(held)])


def path_for(
    overlay: Overlay,
    path: Any,
    writes: bool,
    keeps: bool = False,
    exclusive: bool = False,
    dir_fd: Optional[int] = None,
    creates: bool = True,
) -> Any:
    """The path to open in place of `path`; `path` itself where the overlay does not cover it."""
    if not writes and not overlay.is_used:
        return path
    path = overlay.paths.from_here(path) if dir_fd is None else path
    absolute = overlay.paths.covered(path, dir_fd)
    if absolute is None:
        return path
    place = overlay.where(absolute)
    if not writes or os.path.isdir(place):
        return place if place != absolute else path
    if exclusive and overlay.is_visible(absolute):
        raise _error(FileExistsError, errno.EEXIST, path)
    if not creates and not overlay.is_visible(absolute):
        return place
    return overlay.to_write(absolute, keeps)


def _error(kind: Callable[..., OSError], number: int, path: Any) -> OSError:
    return kind(number, os.strerror(number), path)


def _from_tempfile() -> bool:
    """Whether the replaced function that calls this was called by Python's tempfile."""
    return sys._getframe(3).f_globals.get("__name__") == "tempfile"


def _open(
    overlay: Overlay, original: Any, file: Any, mode: Any = "r", *args: Any, **kwargs: Any
) -> Any:
    if isinstance(mode, str):
        file = path_for(
            overlay,
            file,
            any(letter in mode for letter in "wax+"),
            "w" not in mode,
            "x" in mode,
        )
    return original(file, mode, *args, **kwargs)


def _file_io(overlay: Overlay, original: Any) -> Any:
    """The class of unbuffered files; those that `open` makes are instances of it too."""

    class Kind(abc.ABCMeta):
        def __instancecheck__(cls, instance: Any) -> bool:
            return (
                isinstance(instance, original)
                if cls is FileIO
                else super().__instancecheck__(instance)
            )

        def __subclasscheck__(cls, subclass: type) -> bool:
            return (
                issubclass(subclass, original)
                if cls is FileIO
                else super().__subclasscheck__(subclass)
            )

    class FileIO(original, metaclass=Kind):  # type: ignore[misc]
        def __init__(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any):
            _open(overlay, super().__init__, file, mode, *args, **kwargs)

    FileIO.__module__, FileIO.__qualname__ = original.__module__, original.__qualname__
    return FileIO


def _os_open(
    overlay: Overlay,
    original: Any,
    path: Any,
    flags: int,
    mode: int = 0o777,
    *,
    dir_fd: Optional[int] = None,
) -> Any:
    writes, creates = bool(flags & WRITING), bool(flags & os.O_CREAT)
    if writes and _from_tempfile():
        overlay.paths.made_by_tempfile(os.path.abspath(os.fsdecode(path)))
    exclusive = bool(flags & os.O_EXCL) and creates
    other = path_for(overlay, path, writes, not flags & os.O_TRUNC, exclusive, dir_fd, creates)
    return (
        original(path, flags, mode, dir_fd=dir_fd)
        if other is path
        else original(other, flags, mode)
    )


def _of_one_path(
    overlay: Overlay,
    function: Callable[..., Any],
    reads: bool,
    original: Any,
    path: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Calls `function(overlay, original, absolute, path, ...)` for a path that the overlay covers,
    else `original`.
    """
    if not reads and _from_tempfile():
        overlay.paths.made_by_tempfile(os.path.abspath(os.fsdecode(path)))
    absolute = None
    if overlay.is_used or not reads:
        path = (
            path
            if kwargs.get("dir_fd") is not None
            else overlay.paths.from_here("." if path is None else path)
        )
        absolute = overlay.paths.covered(path, kwargs.get("dir_fd"))
    if absolute is None:
        return original(path, *args, **kwargs)
    path = path if kwargs.pop("dir_fd", None) is None else absolute
    return function(overlay, original, absolute, path, *args, **kwargs)


def _read(
    overlay: Overlay, original: Any, absolute: str, path: Any, *args: Any, **kwargs: Any
) -> Any:
    where = overlay.where(absolute)
    return original(path if where == absolute else where, *args, **kwargs)


def _change(
    overlay: Overlay, original: Any, absolute: str, path: Any, *args: Any, **kwargs: Any
) -> Any:
    """Changes what is there: the user's file is copied into the layer first."""
    if overlay.is_visible(absolute):
        overlay.to_write(absolute, True)
    return original(overlay.upper(absolute), *args, **kwargs)


def _new(overlay: Overlay, absolute: str, path: Any) -> str:
    if overlay.is_visible(absolute):
        raise _error(FileExistsError, errno.EEXIST, path)
    return overlay.to_write(absolute, keeps_content=False)


def _mkdir(
    overlay: Overlay, original: Any, absolute: str, path: Any, *mode: Any, **kwargs: Any
) -> None:
    if overlay.paths.holds_what_passes(absolute) and not overlay.is_visible(absolute):
        return original(path, *mode, **kwargs)
    return original(_new(overlay, absolute, path), *mode, **kwargs)


def _unlink(overlay: Overlay, original: Any, absolute: str, path: Any) -> None:
    place, upper, lower = (
        overlay.where(absolute),
        overlay.upper(absolute),
        overlay.lies_below(absolute),
    )
    if os.path.isdir(place) and not os.path.islink(place):
        raise _error(IsADirectoryError, errno.EISDIR, path)
    if os.path.lexists(upper) or not lower:
        original(upper)
    if lower:
        overlay.hide(absolute)


def _rmdir(overlay: Overlay, original: Any, absolute: str, path: Any) -> None:
    if not os.path.isdir(overlay.where(absolute)):
        original(overlay.where(absolute))
    if overlay.names(absolute)[0]:
        raise _error(OSError, errno.ENOTEMPTY, path)
    _remove(overlay, absolute)


def _rmtree(
    overlay: Overlay, original: Any, absolute: str, path: Any, *args: Any, **kwargs: Any
) -> None:
    if os.path.isdir(overlay.where(absolute)):
        _remove(overlay, absolute)
    else:
        original(path, *args, **kwargs)


def _remove(overlay: Overlay, absolute: str) -> None:
    lower = overlay.lies_below(absolute)
    overlay.remove_upper(absolute)
    if lower:
        overlay.hide(absolute)


def _chdir(overlay: Overlay, original: Any, absolute: str, path: Any) -> None:
    original(path if overlay.lies_below(absolute) else overlay.where(absolute))


def _getcwd(overlay: Overlay, original: Any) -> Any:
    folder = overlay.paths.working_folder()
    return os.fsencode(folder) if original.__name__ == "getcwdb" else folder


def _listdir(overlay: Overlay, original: Any, absolute: str, path: Any) -> Any:
    if not os.path.isdir(overlay.where(absolute)):
        return original(overlay.where(absolute))
    names = overlay.names(absolute)[0]
    return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names


class _Entry:
    """A directory entry of the layer under the user's path."""

    def __init__(self, entry: Any, path: Any):
        self._entry = entry
        self.name = entry.name
        self.path = path

    def __fspath__(self) -> Any:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


class _Scan(Iterator[Any]):
    """What os.scandir returns: an iterator that can be closed."""

    def __init__(self, entries: Any):
        self._entries = iter(entries)

    def __next__(self) -> Any:
        return next(self._entries)

    def close(self) -> None:
        self._entries = iter(())

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _scandir(overlay: Overlay, original: Any, absolute: str, path: Any) -> Any:
    where = overlay.where(absolute)
    if where == absolute and not overlay.any_hidden:
        return original(path)
    if not os.path.isdir(where):
        return original(where)
    names, written = overlay.names(absolute)
    shown = "." if path is None else os.fspath(path)
    entries: List[Any] = []
    if written:
        with original(overlay.upper(absolute)) as above:
            entries += [
                _Entry(e, os.path.join(os.fsdecode(shown), e.name))
                for e in above
                if e.name in written
            ]
    if set(names) - written:
        with original(path) as below:
            entries += [
                e
                for e in below
                if os.fsdecode(e.name) in names and os.fsdecode(e.name) not in written
            ]
    return _Scan(entries)


def _rename(
    overlay: Overlay,
    original: Any,
    src: Any,
    dst: Any,
    *,
    src_dir_fd: Optional[int] = None,
    dst_dir_fd: Optional[int] = None,
) -> None:
    """Within the layer this is a copy and a removal: the user's own file stays where it is."""
    src = src if src_dir_fd is not None else overlay.paths.from_here(src)
    dst = dst if dst_dir_fd is not None else overlay.paths.from_here(dst)
    source, target = overlay.paths.covered(src, src_dir_fd), overlay.paths.covered(dst, dst_dir_fd)
    if source is None and target is None:
        return original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    if source is not None:
        if not overlay.is_visible(source):
            raise _error(FileNotFoundError, errno.ENOENT, src)
        overlay.to_write(source, keeps_content=True)
        if os.path.isdir(overlay.where(source)) and overlay.lies_below(source):
            overlay.copy_up(source)
    from_path = os.fspath(src) if source is None else overlay.upper(source)
    to_path = (
        os.fspath(dst) if target is None else _free_place(overlay, target, os.path.isdir(from_path))
    )
    try:
        original(from_path, to_path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(from_path, to_path)  # the trial's folder is on another file system
    if source is not None and overlay.lies_below(source):
        overlay.hide(source)
    return None


def _free_place(overlay: Overlay, target: str, is_folder: bool) -> str:
    """Where a file or folder that takes the name `target` is put; the user's folder of that name
    may not show through it.
    """
    place = overlay.to_write(target, keeps_content=False)
    if is_folder and not overlay.is_hidden(target) and os.path.isdir(target):
        if overlay.names(target)[0]:
            raise _error(OSError, errno.ENOTEMPTY, target)
        overlay.hide(target)
    return place


def _symlink(
    overlay: Overlay,
    original: Any,
    src: Any,
    dst: Any,
    target_is_directory: bool = False,
    *,
    dir_fd: Optional[int] = None,
) -> None:
    absolute = overlay.paths.covered(dst, dir_fd)
    if absolute is None:
        return original(src, dst, target_is_directory, dir_fd=dir_fd)
    meant = os.path.join(os.path.dirname(absolute), os.fsdecode(src))
    covered = overlay.paths.covered(meant)
    return original(
        meant if covered is None else overlay.where(covered),
        _new(overlay, absolute, dst),
        target_is_directory,
    )


def _link(overlay: Overlay, original: Any, src: Any, dst: Any, **kwargs: Any) -> None:
    source, target = (
        overlay.paths.covered(src, kwargs.get("src_dir_fd")),
        overlay.paths.covered(dst, kwargs.get("dst_dir_fd")),
    )
    if source is None and target is None:
        return original(src, dst, **kwargs)
    place = os.fspath(dst) if target is None else _new(overlay, target, dst)
    shutil.copy2(
        os.fspath(src) if source is None else overlay.where(source), place
    )  # a link would let writes through
    return None


_READING: Dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("stat", "lstat", "access", "readlink", "statvfs"), _read),
    **dict.fromkeys(("getxattr", "listxattr"), _read),
    "chdir": _chdir,
    "listdir": _listdir,
    "scandir": _scandir,
}
_WRITING: Dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("chmod", "lchmod", "chown", "lchown", "chflags", "lchflags"), _change),
    **dict.fromkeys(("utime", "truncate", "setxattr", "removexattr"), _change),
    **dict.fromkeys(("unlink", "remove"), _unlink),
    **dict.fromkeys(("mkdir", "mkfifo", "mknod"), _mkdir),
    "rmdir": _rmdir,
}
_OF_THEIR_OWN: Dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("rename", "replace"), _rename),
    **dict.fromkeys(("getcwd", "getcwdb"), _getcwd),
    "open": _os_open,
    "symlink": _symlink,
    "link": _link,
}
