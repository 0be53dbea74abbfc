"""How brimful reads and writes the files of records, and others in folders of its own.

Somebody else may have made the folder (a clone, a shared disk). So these functions take regular
files alone, follow no link where brimful chose the name, wait for no pipe, and put a new file in
the place of an old one, never new content into it.
"""

import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def opened(path: Path | str, follows_links: bool = False) -> BinaryIO:
    """The file, to be read. Raises OSError for a folder, a pipe or a device; for a link, unless the
    user named it (`follows_links`).
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would wait for its writer
    try:
        descriptor = os.open(path, flags | (0 if follows_links else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno == errno.ELOOP and not follows_links:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read(path: Path | str, follows_links: bool = False) -> bytes:
    """The content of the file, on the terms of `opened`."""
    with opened(path, follows_links) as file:
        return file.read()


def create(path: Path | str, mode: int = 0o600, flags: int = 0) -> int:
    """The descriptor of a new file. Raises FileExistsError where there is one, or a link."""
    return os.open(path, _NEW | flags, mode)


def replace(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file whole or not at all, in the place of one that is there, whose permissions it
    keeps; `mode` is that of a new one (less the umask).
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(create(new, 0o600 if is_regular(path) else mode), "wb") as file:
        try:
            if is_regular(path):
                os.fchmod(file.fileno(), stat.S_IMODE(path.lstat().st_mode))
            file.write(content)
            file.flush()
            os.replace(new, path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def write_named(path: Path, content: bytes) -> None:
    """Into the file that the user named, which may be a link, or a device such as /dev/stdout."""
    with open(path, "wb", opener=without_waiting) as file:
        os.set_blocking(file.fileno(), True)
        file.write(content)


def without_waiting(path: str, flags: int) -> int:
    """For `open`: a pipe that nobody reads raises OSError."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def is_regular(path: Path) -> bool:
    """Whether it is a file itself, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_own_folder(path: Path) -> bool:
    """Whether it is a folder of this user's, and no link to one."""
    status = path.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
