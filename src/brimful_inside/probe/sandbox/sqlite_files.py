"""SQLite's databases, which the library opens in C: what Python's sqlite3 connects to, by a path or
an address (`file:`), what a statement attaches, and where VACUUM INTO writes. Extensions that it
loads are native code, and open what they like."""

from __future__ import annotations

import os
import re
import sqlite3
from typing import Any, Iterator, Tuple
from urllib.parse import quote, unquote

from brimful_inside.probe.sandbox.overlay import Overlay
from brimful_inside.probe.sandbox.python_files import path_for

_COMMENTS = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_NAMES_A_FILE = re.compile(
    _COMMENTS + r"(attach\b(?:\s*database\b)?|vacuum\b(?:\s*\w+)?\s*into\b)"
    r"\s*(.+?)(?:\bas\s*(\S+?))?\s*;?\s*",
    re.IGNORECASE | re.DOTALL,
)
_ADDRESS = re.compile(r"file:(?://[^/]*)?([^?#]*)(\?[^#]*)?(?:#.*)?", re.DOTALL)
_READS_ALONE = re.compile(r"[?&](mode=ro|immutable=(1|on|yes|true))(&|$)")
# beside a database that was not closed: without them, the copy would lack its last changes
_BESIDE = ("-wal", "-journal")
_Cursor = sqlite3.Cursor  # Python's own


def redirect_connections(overlay: Overlay, module: Any) -> None:
    """Of sqlite3, when it has been imported: databases are opened through `overlay`."""
    connect = module.connect

    class Cursor(module.Cursor):  # type: ignore[misc, name-defined]
        def execute(self, sql: Any, *parameters: Any) -> Any:
            statement = _redirected_statement(overlay, self.connection, sql, parameters)
            return super().execute(*statement)

        def executescript(self, script: Any) -> Any:
            parts = _statements(script) if _NAMES_A_FILE.search(str(script)) else [script]
            return super().executescript(
                "".join(_redirected_statement(overlay, self.connection, s, ())[0] for s in parts)
            )

    class Connection(module.Connection):  # type: ignore[misc, name-defined]
        def __init__(self, database: Any, *rest: Any, **named: Any):
            self._brimful_takes_addresses = named.get("uri", rest[6] if len(rest) > 6 else False)
            database = _database(overlay, database, self._brimful_takes_addresses)
            super().__init__(database, *rest, **named)

        def cursor(self, factory: Any = Cursor) -> Any:
            return super().cursor(factory)

        def execute(self, sql: Any, *parameters: Any) -> Any:
            return self.cursor().execute(sql, *parameters)

        def executescript(self, script: Any) -> Any:
            return self.cursor().executescript(script)

    def connects(*args: Any, **named: Any) -> Any:
        if len(args) < 6:  # the sixth is the class of the connection
            named.setdefault("factory", Connection)
        return connect(*args, **named)

    for holder in (module, module.dbapi2):
        holder.Connection, holder.Cursor, holder.connect = Connection, Cursor, connects


def _database(overlay: Overlay, database: Any, takes_addresses: bool) -> Any:
    """The database to open in place of this one."""
    if not isinstance(database, (str, bytes, os.PathLike)):
        return database  # sqlite3 shall raise its own error
    name = os.fsdecode(database)
    address = _ADDRESS.fullmatch(name) if takes_addresses else None
    path, query = (unquote(address[1]), address[2] or "") if address else (name, "")
    if path in ("", ":memory:") or "mode=memory" in query:
        return database
    writes = _READS_ALONE.search(query) is None
    for end in _BESIDE if writes else ():
        path_for(overlay, path + end, True, keeps=True, creates=False)
    place = path_for(overlay, path, writes, keeps=True)
    return "file:" + quote(place) + query if address else place


def _redirected_statement(
    overlay: Overlay, connection: Any, sql: Any, parameters: Tuple[Any, ...]
) -> Tuple[Any, ...]:
    """The statement with its parameters; one that names a file names another, and has none."""
    match = _NAMES_A_FILE.fullmatch(sql) if isinstance(sql, str) else None
    if match is None:
        return (sql, *parameters)
    words, expression, alias = match.groups()
    bound = ", " + alias if alias and alias[0] in "?:@$" else ""
    try:  # SQLite itself says what an expression is
        row = _Cursor(connection).execute("SELECT " + expression + bound, *parameters).fetchone()
        database, *name = (os.fsdecode(part or "") for part in row)
    except sqlite3.Error:  # a bare word is a name, and no column
        database, name = expression.strip("\"'`[] \n\t"), []
    place = _database(overlay, database, connection._brimful_takes_addresses)
    alias = _quoted(name[0]) if name else alias
    return ("%s %s%s;" % (words, _quoted(place), " AS " + alias if alias else ""),)


def _quoted(text: Any) -> str:
    return "'%s'" % os.fsdecode(text).replace("'", "''")


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, with what follows the last one."""
    begun = ""
    for part in re.split("(;)", script):
        begun += part
        if part == ";" and sqlite3.complete_statement(begun):
            yield begun
            begun = ""
    yield begun
