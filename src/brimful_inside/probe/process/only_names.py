"""Whether a statement only names things: a function, a class, or a value that is computed without changing anything. What
follows such a statement finds all as it would without it."""

from __future__ import annotations

import ast
import builtins
from typing import Any, Dict, Iterable, Optional, Set

# Of these modules what a call gives is all that comes of it; of others these functions.
_MODULES = (
    "os.path",
    "pathlib",
    "re",
    "typing",
    "dataclasses",
    "collections",
    "functools",
    "enum",
    "math",
    "numpy",
    "datetime",
)
_FUNCTIONS = {
    *("os.getenv", "os.getcwd", "os.cpu_count", "os.environ.get", "platform.system", "logging.getLogger"),
    *("torch.device", "torch.cuda.is_available", "torch.cuda.device_count"),
}
_BUILTINS = {name for name in vars(builtins) if isinstance(getattr(builtins, name), type)} | {
    *("abs", "all", "any", "chr", "divmod", "len", "max", "min", "ord", "pow", "repr", "round", "sorted", "sum"),
}
_PARTS = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred, ast.keyword, ast.FormattedValue),
    *(ast.JoinedStr, ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Set, ast.Dict),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension),
    *(ast.operator, ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context),
)


class Names:
    """What the names of one file are, as far as what was read of it tells."""

    def __init__(self) -> None:
        self._libraries: Dict[str, str] = {}  # what libraries call what this file calls so
        self._values: Set[str] = {"__file__", "__name__"}  # computed in this file

    def of_library(self, name: str, alias: Optional[str], parts: Iterable[ast.alias] = ()) -> None:
        """After `import name as alias`, or `from name import parts`."""
        named = {part.asname or part.name: name + "." + part.name for part in parts}
        top = name.partition(".")[0]
        self._libraries.update(named or ({alias: name} if alias else {top: top}))

    def only_names(self, statement: ast.stmt) -> bool:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if len(names) < len(targets) or not self._is_value(statement.value):
                return False
            self._values.update(names)
            return True
        if isinstance(statement, ast.Expr):
            return isinstance(statement.value, ast.Constant)
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
            return self._may_decorate(statement) and all(map(self._is_value, defaults))
        if isinstance(statement, ast.ClassDef):
            above = [*statement.bases, *(keyword.value for keyword in statement.keywords)]
            return (
                self._may_decorate(statement) and all(map(self._is_value, above)) and all(map(self.only_names, statement.body))
            )
        return isinstance(statement, ast.Pass)

    def _may_decorate(self, statement: Any) -> bool:
        """Whether libraries alone decorate it."""
        for decorator in statement.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            given = [*decorator.args, *decorator.keywords] if isinstance(decorator, ast.Call) else []
            if not (self._name_of(called) or self._is_builtin(called)) or not all(map(self._is_value, given)):
                return False
        return True

    def _is_value(self, value: Optional[ast.AST]) -> bool:
        if value is None or isinstance(value, ast.Lambda):
            return True
        if isinstance(value, ast.Call):
            return self._only_computes(value.func) and all(map(self._is_value, [*value.args, *value.keywords]))
        return isinstance(value, _PARTS) and all(map(self._is_value, ast.iter_child_nodes(value)))

    def _only_computes(self, function: ast.expr) -> bool:
        """Whether a call of it changes nothing: one of those above, or a method of what was computed here."""
        name = self._name_of(function)
        if name is not None:
            return name in _FUNCTIONS or name.startswith(tuple(module + "." for module in _MODULES))
        if isinstance(function, ast.Attribute):
            first: Any = function.value
            while isinstance(first, (ast.Attribute, ast.Subscript)):
                first = first.value
            return self._is_value(first) and (not isinstance(first, ast.Name) or first.id in self._values)
        return self._is_builtin(function)

    def _is_builtin(self, function: ast.expr) -> bool:
        return isinstance(function, ast.Name) and function.id in _BUILTINS

    def _name_of(self, function: ast.expr) -> Optional[str]:
        """What a library calls it; None where it is no library's."""
        words = []
        while isinstance(function, ast.Attribute):
            words.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name) or function.id not in self._libraries:
            return None
        return ".".join([self._libraries[function.id], *reversed(words)])
