"""Rows of two texts out of parquet, JSON Lines and JSON files, one after the other: files may be
larger than memory.
"""

import codecs
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import ijson
import pyarrow
from pyarrow import parquet

from brimful.errors import UsageError
from recipes.chatlm.settings import DataOptions

ENDINGS = (".parquet", ".jsonl", ".ndjson", ".json")
PARQUET_ROWS = 1024  # at once


class BadRow(Exception):
    """What is wrong with one row."""


def read_rows(paths: Sequence[Path], options: DataOptions) -> Iterator[tuple[str, str]]:
    """(prompt, response) of each row. Raises UsageError that names the file and the row, as none is
    left out.
    """
    count, wanted = 0, {"input", *options.columns[0], *options.columns[1]}
    for path in _checked(paths):
        for place, row in (
            _of_parquet(path, wanted) if path.suffix.lower() == ".parquet" else _of_json(path)
        ):
            try:
                pair = _pair(row, options)
            except BadRow as error:
                raise UsageError(
                    f"{path}, {place}: {error}.",
                    "A row is two texts, and none is left out.",
                    "Name other columns (--prompt-column, --response-column), or mend it.",
                ) from None
            count += 1
            yield pair
    if not count:
        raise UsageError(
            f"There are no rows in {', '.join(map(str, paths))}.",
            suggestion="Name a file with rows.",
        )


def digest(paths: Sequence[Path], *more: object) -> str:
    """Of the files' content and of `more`: 16 hexadecimal digits."""
    content = hashlib.blake2b(repr(more).encode(), digest_size=8)
    for path in _checked(paths):
        with _opened(path) as file:
            content.update(hashlib.file_digest(file, "blake2b").digest())
    return content.hexdigest()


def _checked(paths: Sequence[Path]) -> Sequence[Path]:
    if not paths:
        raise UsageError(
            "--data is missing: there are no rows.",
            suggestion="Name a parquet, JSON Lines or JSON file.",
        )
    for path in paths:
        if path.suffix.lower() not in ENDINGS:
            raise UsageError(
                f"{path} is no data file.", suggestion=f"Data is read from {', '.join(ENDINGS)}."
            )
    return paths


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", suggestion="Name a file that is there."
        ) from error


def _of_parquet(path: Path, wanted: set[str]) -> Iterator[tuple[str, Any]]:
    """Texts come as bytes: Arrow does not say which one is no UTF-8."""
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            names, numbers = file.schema_arrow.names, itertools.count(1)
            for batch in file.iter_batches(
                PARQUET_ROWS, columns=[name for name in names if name in wanted]
            ):
                columns = [
                    c.cast("large_binary") if str(c.type) in ("string", "large_string") else c
                    for c in batch.columns
                ]
                read = (
                    pyarrow.RecordBatch.from_arrays(columns, batch.schema.names).to_pylist()
                    if columns
                    else [{}]
                )
                yield from ((f"row {next(numbers):,}", dict.fromkeys(names) | row) for row in read)
    except (OSError, pyarrow.ArrowException) as error:
        raise UsageError(
            f"{path} is no parquet file that can be read: {str(error).splitlines()[0]}"
        ) from error


def _of_json(path: Path) -> Iterator[tuple[str, Any]]:
    """Objects of an array, or lines as bytes."""
    with _opened(path) as file:
        file.seek(3 if file.peek(3).startswith(codecs.BOM_UTF8) else 0)
        if file.peek(1).lstrip().startswith(b"["):
            yield from _of_array(file, path)
        else:
            yield from (
                (f"line {number:,}", line) for number, line in enumerate(file, 1) if line.strip()
            )


def _of_array(file: BinaryIO, path: Path) -> Iterator[tuple[str, Any]]:
    number = 0
    try:
        for number, row in enumerate(ijson.items(file, "item", use_float=True), 1):
            yield f"row {number:,}", row
    except (ijson.JSONError, UnicodeDecodeError) as error:
        what = (
            f"{path}: after row {number:,} it is no JSON in UTF-8 ({str(error).splitlines()[0]})."
        )
        raise UsageError(what, suggestion="Mend the file.") from None


def _pair(row: Any, options: DataOptions) -> tuple[str, str]:
    if isinstance(row, bytes):
        try:
            row = json.loads(_decoded(row))
        except ValueError as error:
            raise BadRow(f"it is no JSON ({error})") from None
    if not isinstance(row, dict):
        raise BadRow(f"it is {_kind(row)} and no object with columns")
    prompt, response = (_column(row, names) for names in options.columns)
    text = _text(row, prompt)
    if prompt == "instruction" and row.get("input") and not options.prompt_column:
        text = f"{text}\n{_text(row, 'input')}"
    return text, _text(row, response)


def _column(row: dict[str, Any], names: Sequence[str]) -> str:
    present = [name for name in names if name in row]
    if not present:
        raise BadRow(f"it has no column {' or '.join(names)}; there are {', '.join(row) or 'none'}")
    return present[0]


def _text(row: dict[str, Any], name: str) -> str:
    value = row[name]
    if isinstance(value, bytes):
        value = _decoded(value, f"{name}: ")
    if not isinstance(value, str):
        raise BadRow(f"{name} is {_kind(value)} and no text")
    if re.search("[\ud800-\udfff]", value):
        raise BadRow(f"{name} has half of a surrogate pair, which is no UTF-8")
    return value


def _decoded(text: bytes, where: str = "") -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRow(f"{where}byte {error.start + 1:,} is no UTF-8") from None


def _kind(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
