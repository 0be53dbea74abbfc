"""Where recipes keep what they made of their data, the lock under which one process makes it, and
files that are whole.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from filelock import FileLock, Timeout

from brimful.errors import BrimfulError, DiskFull, UsageError

Say = Callable[[str], None]
T = TypeVar("T")


def cache_folder(recipe: str) -> Path:
    """brimful's folder among the user's caches: in XDG_CACHE_HOME, which is ~/.cache by default."""
    root = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(root) / "brimful" / recipe


@contextlib.contextmanager
def lock(path: Path, work: str, say: Say) -> Iterator[None]:
    """Held by one process at a time while it makes `path` ("drawing" it); the kernel takes it from
    a process that dies.
    """
    held = FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            held.acquire(timeout=0)
        except Timeout:
            say(f"Another process is {work} {path.name}: waiting for it.")
            held.acquire()
    except OSError as error:
        raise unwritable(path.parent, error) from error
    try:
        yield
    finally:
        held.release()


def made_once(
    path: Path, work: str, find: Callable[[Say], T | None], make: Callable[[Path], None], say: Say
) -> T:
    """What `find` gives, after `make` where that is None. Of any number of processes at once one
    makes, the others wait. The file or folder that `make` writes at the path it is given becomes
    `path` once it is whole; it may write nothing there.

    Raises DiskFull, UsageError where the folder cannot be written, and BrimfulError where what was
    made is not found.
    """
    content = find(say)
    if content is not None:
        return content
    with lock(path, work, say):
        content = find(lambda _: None)  # another process may have made it meanwhile
        if content is None:
            aside = path.with_name(f"{path.name}.partial")
            try:
                make(aside)
                if aside.exists():
                    aside.replace(path)
            except OSError as error:
                if not DiskFull.caused(error):
                    raise unwritable(path.parent, error) from error
                free = "Free some space, or choose another --cache."
                raise DiskFull(str(path), "nothing of this data", suggestion=free) from error
            finally:
                with contextlib.suppress(OSError):  # it is gone, or a folder
                    aside.unlink()
            content = find(say)
    if content is None:
        raise BrimfulError(
            f"{path} does not hold what was written.",
            "The disk is failing, or something else writes there.",
            "Choose another folder with --cache.",
        )
    return content


def write_whole(path: Path, content: str | bytes) -> None:
    """On the disk when this returns, and under its name only once it is whole. Raises DiskFull."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        if DiskFull.caused(error):
            kept = "what was written before; the same command goes on from there"
            raise DiskFull(str(path), kept, suggestion="Free some space.") from error
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: object) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False, default=str)
    write_whole(path, text + "\n")


def unwritable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"Data cannot be kept in {folder}: {error.strerror}.",
        "It is made once and kept there, so the folder must be writable.",
        "Choose another one with --cache.",
    )
