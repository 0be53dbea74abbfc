"""The trace of a card that may never be used: a file is opened with its first allocation."""

from __future__ import annotations

from typing import Callable, List, Optional, TextIO

__all__ = ["LateTrace"]

_MALLOC = '["malloc"'


class LateTrace:
    """Takes lines as a file does. Those that come before the first allocation are kept until then."""

    def __init__(self, open_file: Callable[[], TextIO]):
        self._open_file: Optional[Callable[[], TextIO]] = open_file
        self._early: List[str] = []
        self._file: Optional[TextIO] = None

    @property
    def is_used(self) -> bool:
        return self._file is not None

    def write(self, line: str) -> int:
        if self._file is not None:
            return self._file.write(line)
        self._early.append(line)
        if line.startswith(_MALLOC) and self._open_file is not None:
            self._file = self._open_file()
            self._file.write("".join(self._early))
            self._early.clear()
        return len(line)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
