"""What an expression of a script is called, and whether it asks for a setting."""

from __future__ import annotations

import ast
from typing import Any, Optional

from brimful_inside.setting_names import is_of_another, setting_of

_CONVERSIONS, _LOOKUPS = ("int", "float", "round"), ("get", "getenv", "getattr")
_HARMLESS = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.BinOp, ast.operator)


def name_of(node: Any) -> str:
    """ "batch_size" of `batch_size`, `config.batch_size`, `config["batch_size"]`,
    `config.get("batch_size", 8)`, `int(batch_size)`, `batch_size // 2`; "" of anything else."""
    if isinstance(node, ast.Subscript):
        return constant_of(node.slice, str) or ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div, ast.FloorDiv)):
        return name_of(node.left) or name_of(node.right)
    if isinstance(node, ast.Call) and name_of(node.func) in _LOOKUPS:
        return next((key for key in (constant_of(arg, str) for arg in node.args) if key), "")
    if isinstance(node, ast.Call) and name_of(node.func) in _CONVERSIONS and node.args:
        return name_of(node.args[0])
    return getattr(node, "attr", None) or getattr(node, "id", "")


def constant_of(node: Any, *kinds: type) -> Any:
    """Its value, where it is a constant of one of these types; else None."""
    return node.value if isinstance(node, ast.Constant) and type(node.value) in kinds else None


def asks(node: ast.AST) -> Optional[str]:
    """The setting that an expression asks for by name, if to run it again changes nothing."""
    harmless = all(
        isinstance(part, (*_HARMLESS, ast.expr_context))
        or (isinstance(part, ast.Call) and name_of(part.func) in (*_CONVERSIONS, *_LOOKUPS))
        for part in ast.walk(node)
    )
    return setting_of(name_of(node)) if harmless else None


def is_bare(node: Any) -> bool:
    """Whether an expression is a number as it stands, or has a name that asks for nothing."""
    named = isinstance(node, (ast.Name, ast.Attribute))
    return constant_of(node, int, float) is not None or bool(named and is_of_another(name_of(node)))
