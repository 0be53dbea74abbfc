"""Rows of two texts out of parquet, JSON Lines and JSON files, one after the other: files may be larger than memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brimful.errors import UsageError
from brimful.recipes.chatlm.options import DataOptions

ENDINGS = (".parquet", ".jsonl", ".ndjson", ".json")
_BLOCK_BYTES = 1 << 20
_PARQUET_ROWS = 1024  # at once


class BadRow(Exception):
    """What is wrong with one row."""


class Rows:
    """(prompt, response) of each row of `paths`. `bad` counts the rows that were left out, after they were passed.

    Raises UsageError that names the file and the row: of what is no row of two texts (unless bad rows are to be left out), of
    a file that cannot be read or is of another kind, and where there are no rows at all.
    """

    def __init__(self, paths: Sequence[Path], options: DataOptions) -> None:
        self._paths, self._options = files(paths), options
        self.bad = 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        self.bad = count = 0
        first = ""
        for path in self._paths:
            for place, row in _rows_of(path, self._options):
                try:
                    pair = _pair(row, self._options)
                except BadRow as error:
                    if not self._options.skip_bad_rows:
                        raise UsageError(
                            f"{path}, {place}: {error}.",
                            "A row is two texts, and none is left out without being asked for.",
                            "Name other columns (--prompt-column, --response-column), mend it, or add --skip-bad-rows.",
                        ) from None
                    first = first or f" The first one: {path}, {place}: {error}."
                    self.bad += 1
                    continue
                count += 1
                yield pair
        if not count:
            bad = f"; {self.bad:,} bad ones were left out.{first}" if self.bad else "."
            names = ", ".join(map(str, self._paths))
            raise UsageError(f"There are no rows in {names}{bad}", suggestion="Name a file with rows of two texts.")


def files(paths: Sequence[Path]) -> list[Path]:
    """The files that `paths` stand for, those of a folder by their names."""
    if not paths:
        raise UsageError(
            "--data is missing: there is nothing to train on.", suggestion="Name a parquet, JSON Lines or JSON file."
        )
    found = []
    for path in paths:
        inside = [path] if not path.is_dir() else sorted(one for one in path.iterdir() if one.suffix.lower() in ENDINGS)
        if not inside or inside[0].suffix.lower() not in ENDINGS:
            raise UsageError(f"{path} is no data file.", suggestion=f"Data is read from {', '.join(ENDINGS)}.")
        found += inside
    return found


def digest(paths: Sequence[Path], *more: object) -> str:
    """Of the files' content and of `more`: 16 hexadecimal digits."""
    seen = hashlib.blake2b(repr(more).encode(), digest_size=8)
    for path in files(paths):
        with _opened(path) as file:
            while block := file.read(_BLOCK_BYTES):
                seen.update(block)
        seen.update(b"\0")
    return seen.hexdigest()


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", suggestion="Name a file that is there.") from error


def _rows_of(path: Path, options: DataOptions) -> Iterator[tuple[str, Any]]:
    """("row 3", what is there). A BadRow in place of what could not be read."""
    if path.suffix.lower() == ".parquet":
        yield from _of_parquet(path, options)
        return
    with _opened(path) as file:
        begin = file.read(_BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        file.seek(0)
        yield from _of_json(file, path) if begin == b"[" else _of_lines(file)


def _of_lines(file: Any) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(file, 1):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        if line.strip():
            yield f"line {number:,}", _parsed(line)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRow(f"byte {error.start + 1:,} is no UTF-8")
    except ValueError as error:
        return BadRow(f"it is no JSON ({error})")


def _of_json(file: Any, path: Path) -> Iterator[tuple[str, Any]]:
    import ijson

    number = 0
    try:
        if file.read(3) != b"\xef\xbb\xbf":
            file.seek(0)
        for number, row in enumerate(ijson.items(file, "item", use_float=True), 1):
            yield f"row {number:,}", row
    except (ijson.JSONError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: after row {number:,} it is no JSON in UTF-8 ({str(error).splitlines()[0]}).",
            "What follows cannot be told apart, so that nothing of it can be left out.",
            "Mend the file.",
        ) from None


def _of_parquet(path: Path, options: DataOptions) -> Iterator[tuple[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            columns = [name for name in _wanted(options) if name in file.schema_arrow.names]
            names, number = file.schema_arrow.names, 0
            for batch in file.iter_batches(_PARQUET_ROWS, columns=columns):
                read = [_values(batch.column(name)) for name in columns]
                for row in zip(*read, strict=True) if columns else [()] * len(batch):
                    number += 1
                    yield f"row {number:,}", dict.fromkeys(names) | dict(zip(columns, row, strict=True))
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(f"{path} is no parquet file that can be read: {str(error).splitlines()[0]}") from error


def _values(column: Any) -> list[Any]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        return [_value(one) for one in column]


def _value(one: Any) -> Any:
    try:
        return one.as_py()
    except UnicodeDecodeError as error:
        return BadRow(f"byte {error.start + 1:,} is no UTF-8")


def _wanted(options: DataOptions) -> list[str]:
    """Columns that may be read."""
    prompts = [options.prompt_column] if options.prompt_column else ["prompt", "instruction", "input"]
    return [*prompts, options.response_column] if options.response_column else [*prompts, "response", "output"]


def _pair(row: Any, options: DataOptions) -> tuple[str, str]:
    if isinstance(row, BadRow):
        raise row
    if not isinstance(row, Mapping):
        raise BadRow(f"it is {_kind(row)} and no object with columns")
    prompt = options.prompt_column or _first_of(row, ("prompt", "instruction"))
    response = options.response_column or _first_of(row, ("response", "output"))
    text = _text(row, prompt)
    if (
        prompt == "instruction"
        and options.prompt_column is None
        and row.get("input") is not None
        and (more := _text(row, "input"))
    ):
        text = f"{text}\n{more}"
    return text, _text(row, response)


def _first_of(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    found = next((name for name in names if name in row), None)
    if found is None:
        raise BadRow(f"it has no column {' or '.join(names)}; there are {', '.join(map(str, row)) or 'none'}")
    return found


def _text(row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        raise BadRow(f"it has no column {name}; there are {', '.join(map(str, row)) or 'none'}")
    value = row[name]
    if isinstance(value, BadRow):
        raise BadRow(f"{name}: {value}")
    if not isinstance(value, str):
        raise BadRow(f"{name} is {_kind(value)} and no text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRow(f"{name} has half of a surrogate pair, which is no UTF-8") from None
    return value


def _kind(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
