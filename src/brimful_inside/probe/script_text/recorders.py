"""Lines of the script that put another number in place of one that a name asks for, as they run in
an audit: `min(config.batch_size, 2)`, `batch_size if free > needed else 2`, `args.workers = 0`.

Such an expression gets a recorder around it; all else of the text, and every value, stays as it is.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import dataclasses
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Tuple

from brimful_inside.probe.script_text.expressions import asks, is_bare, name_of
from brimful_inside.setting_names import setting_of
from brimful_inside.wire import Asked

MOST, MOST_WORDS = 64, 80  # changes that are reported, characters of an expression
_BOUNDED, _CHOSEN = "__brimful_bounded__", "__brimful_chosen__"  # the recorders, in builtins
# None of torch's: they take tensors, in functions that a compiler may trace.
_BOUNDS = re.compile(r"min|max|clip|clamp|(np|numpy)\.(clip|[fa]?min(imum)?|[fa]?max(imum)?)")

# What has a recorder, and which argument of a call asks; by (that, asked, given): what it did.
_spots: List[Tuple[Asked, int]] = []
replaced: Dict[Tuple[int, float, float], Asked] = {}


def record(tree: ast.Module, source: bytes, path: str) -> bool:
    """Puts recorders into the tree."""
    setattr(builtins, _BOUNDED, _bounded)
    setattr(builtins, _CHOSEN, _chosen)
    before = len(_spots)
    _Marker(source.decode("utf-8", "replace"), os.path.basename(path)).visit(tree)
    return len(_spots) > before


def _bounded(number: int, function: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of a call of min, max, clip."""
    result = function(*args, **kwargs)
    _note(number, args[_spots[number][1]], result)
    return result


def _chosen(number: int, value: Any, other: Callable[[], Any]) -> Any:
    """In place of a value; `other`: what stood there, or would."""
    with contextlib.suppress(Exception):  # nothing did
        _note(number, other(), value)
    return value


def _note(number: int, asked: Any, given: Any) -> None:
    numbers = all(isinstance(n, (int, float)) and not isinstance(n, bool) for n in (asked, given))
    if numbers and asked != given and len(replaced) < MOST:
        replaced[number, asked, given] = dataclasses.replace(
            _spots[number][0], requested=asked, effective=given
        )


class _Marker(ast.NodeTransformer):
    def __init__(self, source: str, file: str):
        self._source, self._file = source, file
        # by assignment or return: what another branch assigns, or another return gives
        self._other: Dict[ast.AST, ast.expr] = {}

    def visit_FunctionDef(self, node: Any) -> Any:
        if node.name in ("forward", "__call__"):
            return node  # a compiler may trace these
        returns = list(_returns(node))
        asking = next((part.value for part in returns if part.value and asks(part.value)), None)
        if asking is not None:
            self._other.update(dict.fromkeys(returns, asking))
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> ast.Return:
        other = self._other.get(node)
        self.generic_visit(node)
        if other is not None and is_bare(node.value):
            node.value = self._recorded(node.value, other, node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        # an attribute of a class is a first value, and its name is not that of a global one
        for part in node.body:
            if not isinstance(part, ast.Assign):
                self.visit(part)
        return node

    def visit_If(self, node: ast.If) -> Any:
        branches = list(map(_assigned, _branches(node)))
        for branch in branches:
            for target, part in branch.items():
                others = [
                    other[target].value
                    for other in branches
                    if other is not branch and target in other
                ]
                others.sort(key=lambda value: not asks(value))
                if others:
                    self._other.setdefault(part, others[0])
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        other = self._other.get(node, node.targets[0])
        self.generic_visit(node)
        if is_bare(node.value) and asks(other):
            node.value = self._recorded(node.value, other, node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        body, other = node.body, node.orelse
        self.generic_visit(node)
        if is_bare(body) and asks(other):
            node.body = self._recorded(body, other, node)
        if is_bare(other) and asks(body):
            node.orelse = self._recorded(other, body, node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        names = [name_of(arg) for arg in node.args]
        self.generic_visit(node)
        asking = [at for at, name in enumerate(names) if setting_of(name)]
        if (
            len(asking) == 1
            and not any(isinstance(arg, ast.Starred) for arg in node.args)
            and _BOUNDS.fullmatch(ast.unparse(node.func))
        ):
            number = self._spot(names[asking[0]], node, asking[0])
            node.func, node.args = ast.Name(_BOUNDED, ast.Load()), [number, node.func, *node.args]
        return node

    def _recorded(self, value: Any, other: Any, whole: Any) -> ast.Call:
        lazily = ast.parse("lambda: " + ast.unparse(other), mode="eval").body
        args = [self._spot(name_of(other), whole, 0), value, lazily]
        return ast.copy_location(ast.Call(ast.Name(_CHOSEN, ast.Load()), args, []), value)

    def _spot(self, name: str, whole: Any, operand: int) -> ast.Constant:
        text = " ".join((ast.get_source_segment(self._source, whole) or "").split())[:MOST_WORDS]
        at = "%s:%d" % (self._file, whole.lineno)
        _spots.append(
            (Asked(setting_of(name) or "", name, 0, "", "replaced", 0, at, text), operand)
        )
        return ast.Constant(len(_spots) - 1)


def _returns(node: ast.AST) -> Iterator[ast.Return]:
    """Those of a function, without those of functions within it."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.Return):
            yield part
        elif not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _returns(part)


def _branches(node: ast.If) -> Iterator[List[Any]]:
    """The bodies of an if, of its elifs and of its else."""
    yield node.body
    if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        yield from _branches(node.orelse[0])
    else:
        yield node.orelse


def _assigned(body: List[Any]) -> Dict[str, Any]:
    return {ast.unparse(part.targets[0]): part for part in body if isinstance(part, ast.Assign)}
