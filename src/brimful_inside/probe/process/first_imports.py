"""The imports with which a script begins, as far as they are of libraries: up to its first statement that does anything else.

What follows such a statement may hang on it, and is left to the script itself. Constants that it puts into the environment are
put there for the imports after it too, and warnings are filtered: the script will do both again, to the same end.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import os
import sys
from itertools import chain
from typing import Any, Dict, Iterator, List, Optional, Set

from brimful_inside.probe.context import module_and_program

_AGAIN = ("os.environ.setdefault", "os.environ.update", "warnings.filterwarnings", "warnings.simplefilter")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def import_libraries(argv: List[str]) -> None:
    """Runs these imports. The first that raises an error ends them: the script will raise it again."""
    names: Dict[str, Any] = {"__name__": "brimful_imports"}
    try:
        for statement in _Imports(argv).of_script():
            exec(compile(ast.Module([statement], []), "<imports>", "exec"), names)
    except (Exception, SystemExit):
        pass


class _Imports:
    def __init__(self, argv: List[str]):
        self._module, self._script = module_and_program(argv[1:])
        self._folder = os.getcwd() if self._module else os.path.dirname(os.path.realpath(self._script))
        self._read: Set[str] = set()
        self._over = False

    def of_script(self) -> Iterator[ast.stmt]:
        if self._script:
            yield from self._of_file(self._script, "")
        elif self._module:
            file = self._users_file(self._module) or _file_of_library(self._module)
            yield from self._of_file(file, self._module.rpartition(".")[0]) if file else ()

    def _of_file(self, file: str, package: str) -> Iterator[ast.stmt]:
        """Statements to run, those of the user's own modules in the place of their import."""
        if file in self._read:
            return
        self._read.add(file)
        with open(file, "rb") as opened:
            body = ast.parse(opened.read()).body
        for statement in body:
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    yield from self._of_import(alias.name, ast.copy_location(ast.Import([alias]), statement))
            elif isinstance(statement, ast.ImportFrom):
                name = ".".join(filter(None, [_above(package, statement.level), statement.module or ""]))
                whole = ast.copy_location(ast.ImportFrom(name, statement.names, 0), statement)
                yield from self._of_import(name, whole)
            elif _may_be_done_again(statement):
                yield statement
            elif not _does_nothing(statement):
                self._over = True
            if self._over:
                return

    def _of_import(self, name: str, statement: ast.stmt) -> Iterator[ast.stmt]:
        if self._over:  # in the module that was imported before
            return
        file = self._users_file(name)
        if file is not None:
            yield from self._of_file(file, name if os.path.basename(file) == "__init__.py" else name.rpartition(".")[0])
        elif _is_library(name):
            yield statement

    def _users_file(self, name: str) -> Optional[str]:
        """Of a module beside the script, which Python would find first."""
        place = os.path.join(self._folder, *name.split("."))
        files = (os.path.join(place, "__init__.py"), place + ".py")
        return next((file for file in files if os.path.isfile(file)), None)


def _above(package: str, level: int) -> str:
    """The package that a relative import of so many dots begins from; "" for an absolute one."""
    return "" if level == 0 else ".".join(package.split(".")[: len(package.split(".")) - level + 1])


def _does_nothing(statement: ast.stmt) -> bool:
    """Whether it defines something, gives a name to a constant, or tries no more than these and imports."""
    if isinstance(statement, ast.Try):
        parts = [*statement.body, *statement.orelse, *statement.finalbody, *chain(*(h.body for h in statement.handlers))]
        return all(isinstance(part, (ast.Import, ast.ImportFrom, ast.Pass)) or _does_nothing(part) for part in parts)
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr)):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        return isinstance(statement.value, ast.Constant) and all(isinstance(target, ast.Name) for target in targets)
    return isinstance(statement, _DEFINITIONS) and not statement.decorator_list


def _may_be_done_again(statement: ast.stmt) -> bool:
    """Whether it puts constants into the environment, or filters warnings."""
    if isinstance(statement, ast.Assign):
        places = [ast.unparse(target.value) for target in statement.targets if isinstance(target, ast.Subscript)]
        return places == ["os.environ"] and isinstance(statement.value, ast.Constant)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in _AGAIN:
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(isinstance(value, (ast.Constant, ast.Name, ast.Attribute)) for value in given)


def _is_library(name: str) -> bool:
    """Whether it lies in this Python's library or among the packages installed beside it."""
    top = name.partition(".")[0]
    if top in sys.builtin_module_names or top in getattr(sys, "stdlib_module_names", ()):
        return top != "__future__"
    spec = importlib.machinery.PathFinder.find_spec(top)
    origin = (spec.origin or next(iter(spec.submodule_search_locations or ()), "")) if spec is not None else ""
    return bool({"site-packages", "dist-packages"} & set(origin.split(os.sep)))


def _file_of_library(module: str) -> Optional[str]:
    """Of a module that is run with ``-m``; the packages above it are imported."""
    if not _is_library(module):
        return None
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        spec = importlib.util.find_spec(module + ".__main__")
    return spec.origin if spec is not None else None
