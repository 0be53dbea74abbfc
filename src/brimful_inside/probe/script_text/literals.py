"""The integers in a script's text: in a finding trial each becomes a `Number` that knows where it
comes from; later one is replaced.

Only those that are a value as they stand: assigned, returned, passed, a default, in a tuple or a
dictionary, or multiplied. The positions of all others, and every line number, stay as they are.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import os
import re
import sys
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Tuple

LARGEST = 1 << 24  # no batch is larger
NAMED = 8  # other places of a number
TABLE = "__brimful_numbers__"  # in builtins: what stands in place of the literals
_TEXT = 100  # characters of a line that are kept
_MIN_OR_MAX = re.compile(r"\b(min|max)\s*\(")


@dataclass(frozen=True)
class Literal:
    """An integer in the script's text."""

    file: str
    line: int
    column: int  # in bytes, as in `ast`
    number: int
    text: str  # its line


#: By literal: the smallest number that `min` or `max` set beside it, and that line of the script.
limits: Dict[Literal, Tuple[int, str]] = {}


class Number(int):
    """An int in all that it does. Multiplied, or divided without a remainder's part, by another it
    still knows its literal (a batch per process, or of all cards); any other arithmetic gives a
    plain int."""

    literal: Optional[Literal]
    calls: Optional[Tuple[str, ...]]

    def __new__(
        cls, value: int, literal: Optional[Literal] = None, calls: Optional[Tuple[str, ...]] = None
    ) -> Number:
        self = super().__new__(cls, value)
        self.literal, self.calls = literal, calls
        return self

    def _derived(self, value: Any, other: Any) -> Any:
        if not isinstance(value, int):
            return value
        literal = other.literal if _is_better(other, self) else self.literal
        return Number(value, literal) if literal is not None else value

    def __mul__(self, other: Any) -> Any:
        return self._derived(int.__mul__(self, other), other)

    def __rmul__(self, other: Any) -> Any:
        return self._derived(int.__rmul__(self, other), other)

    def __floordiv__(self, other: Any) -> Any:
        return self._derived(int.__floordiv__(self, other), None)

    def __lt__(self, other: Any) -> Any:  # which `min` asks
        _note_limits(self, other)
        return int.__lt__(self, other)

    def __gt__(self, other: Any) -> Any:  # which `max` asks
        _note_limits(self, other)
        return int.__gt__(self, other)

    def __copy__(self) -> Number:
        return self

    def __deepcopy__(self, memo: Any) -> Number:
        return self

    def __reduce__(self) -> Any:
        return int, (int(self),)  # in a file it is an int

    def keep_place(self) -> Any:
        """As `__reduce__`, for a process that this one starts."""
        return Number, (int(self), self.literal, self.calls)


def _note_limits(number: Number, other: Any) -> None:
    """Where `min` or `max` compares a number with another, the loader gets one of the two."""
    if not isinstance(other, int):
        return
    frame = sys._getframe(2)
    where = _min_or_max_at(frame.f_code.co_filename, frame.f_lineno)
    if where is None:
        return
    for compared, beside in ((number, int(other)), (other, int(number))):
        literal = getattr(compared, "literal", None)
        if literal is not None and beside > 1:
            limits[literal] = min(limits.get(literal, (beside, where)), (beside, where))


@functools.cache  # a script may compare in every round of a long loop
def _min_or_max_at(path: str, line: int) -> Optional[str]:
    text = linecache.getline(path, line).strip()
    if not _MIN_OR_MAX.search(text):
        return None
    return "%s:%d (`%s`)" % (os.path.basename(path), line, text[:_TEXT])


def _is_better(other: Any, number: Number) -> bool:
    """Of two literals that are multiplied, the one in whose line a batch is named is meant."""
    theirs: Any = other.literal if isinstance(other, Number) else None
    if theirs is None or number.literal is None:
        return theirs is not None
    return "batch" in theirs.text.lower() and "batch" not in number.literal.text.lower()


def places_of(number: Any) -> Tuple[Optional[Literal], Optional[List[str]]]:
    """(the literal that `number` comes from, the calls that made its loader), each None where it is
    not known.
    """
    if not isinstance(number, Number):
        return None, None
    return number.literal, list(number.calls) if number.calls is not None else None


class Literals:
    """All integers of the texts that were read in this process."""

    def __init__(self) -> None:
        self.table: List[Number] = []
        # (file, line, column, number), marked or not
        self._all: List[Tuple[str, int, int, int]] = []

    def mark(self, tree: ast.Module, source: bytes, path: str) -> bool:
        """The integers of the tree know their places from here on."""
        lines = source.decode("utf-8", "replace").splitlines()
        nodes: Any = ast.walk(tree)
        self._all += [(path, n.lineno, n.col_offset, n.value) for n in nodes if _is_number(n)]
        for holder, name, index, node in _values(tree):
            text = lines[node.lineno - 1].strip() if node.lineno <= len(lines) else ""
            number: Any = node.value
            literal = Literal(path, node.lineno, node.col_offset, number, text[:_TEXT])
            place = ast.Constant(len(self.table))
            self.table.append(Number(number, literal))
            lookup = ast.Subscript(ast.Name(TABLE, ast.Load()), place, ast.Load())
            _put(holder, name, index, ast.copy_location(lookup, node))
        setattr(builtins, TABLE, self.table)
        return True

    def others(self, literal: Literal) -> List[str]:
        """ "model.py:12", for each of some other places where the texts have this number."""
        place = (literal.file, literal.line, literal.column)
        places = [
            (file, line)
            for file, line, column, n in self._all
            if n == literal.number and (file, line, column) != place
        ]
        return ["%s:%d" % (os.path.basename(file), line) for file, line in dict.fromkeys(places)][
            :NAMED
        ]

    def of_a_batch(self, number: int) -> List[Literal]:
        """Those of this number in whose line a batch is named, from the top of each file."""
        literals = {
            marked.literal
            for marked in self.table
            if marked.literal is not None and marked.literal.number == number
        }
        named = (place for place in literals if "batch" in place.text.partition("#")[0].lower())
        return sorted(named, key=lambda place: (place.file, place.line, place.column))


def replace(
    by_file: Dict[str, Dict[Tuple[int, int], Tuple[int, int]]],
    tree: ast.Module,
    source: bytes,
    path: str,
) -> bool:
    """Other integers, by file and (line, column): (what stands there, what is to stand there).

    Raises LookupError where the text has changed since the place was found.
    """
    left = dict(by_file.get(path, {}))
    for holder, name, index, node in _values(tree):
        before, value = left.get((node.lineno, node.col_offset), (None, 0))
        if before is not None and before == node.value:
            del left[(node.lineno, node.col_offset)]
            _put(holder, name, index, ast.copy_location(ast.Constant(value), node))
    for (line, _), (before, _) in left.items():
        raise LookupError("%s:%d has no %d any more" % (path, line, before))
    return path in by_file


def _is_number(node: Optional[ast.AST]) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and 1 <= node.value <= LARGEST


# The fields of a node in which an integer is a value as it stands.
_FIELDS: Dict[type, Tuple[str, ...]] = {
    ast.Assign: ("value",),
    ast.AnnAssign: ("value",),
    ast.NamedExpr: ("value",),
    ast.Return: ("value",),
    ast.Lambda: ("body",),
    ast.Tuple: ("elts",),
    ast.List: ("elts",),
    ast.Dict: ("values",),
    ast.keyword: ("value",),
    ast.Call: ("args",),
    ast.arguments: ("defaults", "kw_defaults"),
    ast.IfExp: ("body", "orelse"),
    ast.BoolOp: ("values",),
}
_FACTORS = (ast.Mult, ast.FloorDiv)
_NO_VALUES = ("range", "len", "isinstance")  # calls whose integers are not passed on


def _values(tree: ast.AST) -> Iterable[Tuple[Any, str, Optional[int], ast.Constant]]:
    """(node, field, index in it, integer), for each integer that is a value. Annotations and
    subscripts hold none.
    """
    values: List[Tuple[Any, str, Optional[int], ast.Constant]] = []
    for node in _nodes(tree):
        names = _FIELDS.get(type(node), ())
        if isinstance(node, ast.BinOp) and isinstance(node.op, _FACTORS):
            names = ("left", "right") if isinstance(node.op, ast.Mult) else ("left",)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in _NO_VALUES
        ):
            continue
        for name in names:
            value = getattr(node, name)
            for index, part in enumerate(value) if isinstance(value, list) else ((None, value),):
                if _is_number(part):
                    values.append((node, name, index, part))
    return values


def _nodes(tree: ast.AST) -> Iterable[ast.AST]:
    """All nodes but those of annotations, subscripts' indices and patterns."""
    todo = [tree]
    while todo:
        node = todo.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "slice", "pattern"):
                parts = value if isinstance(value, list) else [value]
                todo += [part for part in parts if isinstance(part, ast.AST)]


def _put(holder: Any, name: str, index: Optional[int], node: ast.expr) -> None:
    if index is None:
        setattr(holder, name, node)
    else:
        getattr(holder, name)[index] = node
