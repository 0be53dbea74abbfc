"""The trace of one card, as it is written."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, TextIO

from brimful_inside.simulator import trace as rows


class TraceWriter:
    """Writes the rows of a card's trace; nothing where `file` is None. Whoever writes holds the
    ledger's lock."""

    def __init__(self, file: Optional[TextIO]):
        self._file = file
        # who allocates (attribution.annotations.CallSites), where the trace is to say it
        self.call_sites: Any = None
        # of the card, by first allocation, so that its trace does not depend on other threads
        self._sites: Dict[Any, int] = {}
        self._stream = self._pool = 0  # of the malloc before
        self._site = -1

    def row(self, row: Any) -> None:
        self.lines(rows.encode_row(row) + "\n")

    def lines(self, lines: str) -> None:
        if self._file is not None:
            self._file.write(lines)

    def malloc(
        self,
        number: int,
        nbytes: int,
        op: str,
        formula: Optional[str],
        args: Sequence[int],
        at_most: bool,
    ) -> None:
        tail = "" if formula is None else ',"%s",[%s]' % (formula, ",".join(map(str, args)))
        self.lines('["malloc",%d,%d,"%s"%s]\n' % (number, nbytes, op, tail))
        if at_most:
            self.lines('["at_most",%d]\n' % number)

    def context(self, stream: int, pool: int) -> None:
        """What differs from the malloc before: stream, pool and site."""
        if self._file is None:
            return
        if stream != self._stream:
            self._stream = stream
            self.row(rows.Stream(stream))
        if pool != self._pool:
            self._pool = pool
            self.row(rows.Pool(pool))
        if self.call_sites is None:
            return
        number, new = self.call_sites.current(self._sites)
        if new is not None:
            self.row(new)
        if number != self._site:
            self._site = number
            self.lines('["at",%d]\n' % number)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def forget(self) -> None:
        self._file = None


class LateFile:
    """Takes lines as a file does, and opens the file with the first allocation: a card that is
    never used leaves none."""

    def __init__(self, open_file: Callable[[], TextIO], header: Callable[[], str]):
        self._open_file, self._header = open_file, header
        self._early: List[str] = []
        self._file: Optional[TextIO] = None

    def write(self, line: str) -> int:
        if self._file is not None:
            return self._file.write(line)
        self._early.append(line)
        if line.startswith('["malloc"'):
            self._file = self._open_file()
            self._file.write(self._header() + "".join(self._early))
        return len(line)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()
