"""The few things that writing a checkpoint does to a disk. Each one is a method, so that a test can stop after any of them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

__all__ = ["Disk"]

_OS_ERROR = re.compile(r"\(os error (\d+)\)")


class Disk:
    """Writes and moves. What was written survives a power cut once `sync` of the file and of its folder came back."""

    def make_folder(self, path: Path) -> None:
        path.mkdir()

    def write_tensors(self, path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
        try:
            save_file(dict(tensors), path, dict(metadata))
        except SafetensorError as error:
            raise _os_error(error, path) from error

    def write_bytes(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)

    def sync(self, path: Path) -> None:
        """Waits until a file's bytes, or the names in a folder, are on the disk."""
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        except OSError as error:
            # Some network file systems cannot sync a folder and say EINVAL; there the rename itself has to do.
            if not (error.errno == errno.EINVAL and path.is_dir()):
                raise
        finally:
            os.close(opened)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, folder: Path) -> None:
        """A folder with all that is in it; no error where it is gone already."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _os_error(error: SafetensorError, path: Path) -> Exception:
    """safetensors writes in Rust, whose errors carry the system's number in their text alone."""
    found = _OS_ERROR.search(str(error))
    return error if found is None else OSError(int(found[1]), os.strerror(int(found[1])), str(path))
