"""The integers in a script's text: in a finding trial each becomes a `Number` that knows its place;
later one is replaced.

Only those that are a value as they stand: assigned, returned, passed, a default, in a tuple or a
dictionary, or multiplied. The positions of all others, and every line number, stay as they are.
"""

from __future__ import annotations

import ast
import builtins
import os
from typing import Any, Dict, Iterable, List, Optional, Tuple

from brimful_inside.probe.batch_size.numbers import Literal, Number

LARGEST = 1 << 24  # no batch is larger
NAMED = 8  # other places of a number
TABLE = "__brimful_numbers__"  # in builtins: what stands in place of the literals


class Literals:
    """All integers of the texts that were read in this process."""

    def __init__(self) -> None:
        self.table: List[Number] = []
        # (file, line, column, number), marked or not
        self._all: List[Tuple[str, int, int, int]] = []

    def mark(self, source: bytes, path: str) -> ast.Module:
        """The tree of `source`, whose integers know their places. SyntaxError, ValueError."""
        tree = ast.parse(source, path)
        lines = source.decode("utf-8", "replace").splitlines()
        numbers: Any = [node for node in ast.walk(tree) if _is_number(node)]
        self._all += [(path, n.lineno, n.col_offset, n.value) for n in numbers]
        for holder, name, index, node in _values(tree):
            text = lines[node.lineno - 1].strip() if node.lineno <= len(lines) else ""
            number: Any = node.value
            place = Literal(path, node.lineno, node.col_offset, number, text[:100])
            self.table.append(Number(number, place))
            _put(holder, name, index, _lookup(len(self.table) - 1, node))
        setattr(builtins, TABLE, self.table)
        return tree

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


def replaced(
    source: bytes, path: str, numbers: Dict[Tuple[int, int], Tuple[int, int]]
) -> ast.Module:
    """The tree of `source` with other integers: (line, column) -> (what stands there, what is to
    stand there).

    Raises LookupError where the text has changed since the place was found.
    """
    tree, left = ast.parse(source, path), dict(numbers)
    for holder, name, index, node in _values(tree):
        before, value = left.get((node.lineno, node.col_offset), (None, 0))
        if before is not None and before == node.value:
            del left[(node.lineno, node.col_offset)]
            _put(holder, name, index, ast.copy_location(ast.Constant(value), node))
    if left:
        line, column = next(iter(left))
        raise LookupError("%s:%d has no %d any more" % (path, line, left[(line, column)][0]))
    return tree


def _lookup(index: int, node: ast.Constant) -> ast.expr:
    table = ast.copy_location(ast.Name(TABLE, ast.Load()), node)
    place = ast.copy_location(ast.Constant(index), node)
    return ast.copy_location(ast.Subscript(table, place, ast.Load()), node)


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
            skipped = name in ("annotation", "returns", "slice", "pattern")
            todo += (
                []
                if skipped
                else [
                    part
                    for part in (value if isinstance(value, list) else [value])
                    if isinstance(part, ast.AST)
                ]
            )


def _put(holder: Any, name: str, index: Optional[int], node: ast.expr) -> None:
    if index is None:
        setattr(holder, name, node)
    else:
        getattr(holder, name)[index] = node
