"""Where a script, its settings' files and its environment have a number under a name that asks for
a setting, and whether the script does anything with that name."""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import re
from typing import Any, Iterator, List, Tuple

from brimful_inside.probe.context import guarded
from brimful_inside.probe.script_text import config_files, user_code
from brimful_inside.probe.script_text.expressions import constant_of, name_of
from brimful_inside.setting_names import setting_of
from brimful_inside.wire import Asked

MOST = 256  # numbers
# Calls whose keywords are settings, and calls that show a value and do nothing with it.
_HOLDERS = re.compile(r"^dict$|space|conf|arg|param|option|setting|munch", re.I)
_SHOWING = re.compile(r"print|log|info|debug|warning|format|write", re.I)
_WITH_A_DEFAULT = ("int", "float", "get", "getenv", "field", "Field")
_READ, _UNREAD, _PASSED = "read", "unread", "passed"


@guarded
def definitions() -> List[Asked]:
    """Of this process, once its script has come to its end."""
    trees = {path: ast.parse("".join(linecache.getlines(path))) for path in user_code.loaded()}
    read = {name for tree in trees.values() for name in _names_read(tree)}
    pairs = [(path, *pair) for path, tree in trees.items() for pair in _in_text(tree)]
    for at in config_files.numbers():
        if not user_code.is_users(at.file):
            continue  # a library's defaults ask for nothing
        use = _UNREAD if config_files.opened[at.file] else _READ
        pairs.append((at.file, at.line, at.name, ast.Constant(at.number), use))
    found: List[Asked] = []
    for path, line, name, node, use in pairs:
        setting, (text, variable) = setting_of(name), _number_of(node)
        with contextlib.suppress(ValueError):
            place = "%s:%d" % (os.path.basename(path), line)
            place = "environment variable " + variable if variable else place
            use = _READ if use == _UNREAD and name in read else use
            found += [Asked(setting, name, float(text), place, use)] if setting and text else []
    return found[:MOST]


def _in_text(tree: ast.AST) -> Iterator[Tuple[int, str, Any, str]]:
    """(line, name, value, use) of assignments, keys of dictionaries, options, and keywords of
    calls; "unread" where the name is one that a script should read."""
    for node in ast.walk(tree):
        pairs: List[Tuple[str, Any, str]] = []
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            target: Any = node.targets[0] if isinstance(node, ast.Assign) else node.target
            both = [getattr(side, "elts", [side]) for side in (target, node.value)]
            use = _READ if isinstance(target, ast.Subscript) else _UNREAD
            pairs = [(name_of(left), right, use) for left, right in zip(*both)]
        elif isinstance(node, ast.Dict):
            keys = [constant_of(key, str) or "" for key in node.keys]
            pairs = [(key, v, _READ) for key, v in zip(keys, node.values) if "params" not in keys]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            pairs = [("accumulation", node.right, _PASSED)]
        elif isinstance(node, ast.Call):
            words = [constant_of(arg, str) or "" for arg in node.args]
            options = [word.lstrip("-").replace("-", "_") for word in words if word[:1] == "-"]
            use = _READ if _HOLDERS.search(name_of(node.func)) else _PASSED
            pairs = [(k.arg or "", k.value, use) for k in node.keywords if k.arg != "default"]
            default = (k.value for k in node.keywords if k.arg == "default")
            pairs += [(option, value, _UNREAD) for value in default for option in options]
        yield from ((getattr(pair[1], "lineno", 0), *pair) for pair in pairs)


def _number_of(node: Any) -> Tuple[str, str]:
    """(a number's text, the environment variable that it is from), "" without one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):  # 5 * 8
        factors = [constant_of(side, int) for side in (node.left, node.right)]
        return ("" if None in factors else str(factors[0] * factors[1])), ""
    if not isinstance(node, (ast.Call, ast.Subscript)):
        value = constant_of(node, int, float, str)
        return ("" if value is None else str(value)), ""
    if "env" in ast.unparse(node) and name_of(node) in os.environ:
        return os.environ[name_of(node)], name_of(node)
    args = [*getattr(node, "args", ()), *(k.value for k in getattr(node, "keywords", ()))]
    takes = args and name_of(getattr(node, "func", None)) in _WITH_A_DEFAULT
    return _number_of(args[-1]) if takes else ("", "")


def _names_read(node: ast.AST) -> Iterator[str]:
    """The names that a text does more with than to show them."""
    shows = isinstance(node, ast.Call) and _SHOWING.search(name_of(node.func))
    if not shows and not isinstance(node, ast.JoinedStr):
        if isinstance(getattr(node, "ctx", None), ast.Load) or isinstance(node, ast.Call):
            yield name_of(node)
        for child in ast.iter_child_nodes(node):
            yield from _names_read(child)
