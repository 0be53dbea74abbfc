"""The imports with which a script begins, as far as they are of libraries: up to its first
statement that does anything but name things (`only_names`).

What follows such a statement may hang on it, and is left to the script itself. Constants that it
puts into the environment are put there for the imports after it too, and warnings are filtered: the
script will do both again, to the same end.
"""

from __future__ import annotations

import ast
import copy
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from itertools import chain
from typing import Any, Dict, Iterator, List, Optional, Set

from brimful_inside.probe.context import module_and_program
from brimful_inside.probe.process.only_names import Names

_REPEATABLE = (
    "os.environ.setdefault",
    "os.environ.update",
    "warnings.filterwarnings",
    "warnings.simplefilter",
)
_STANDARD = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")
)


def import_libraries(argv: List[str]) -> bool:
    """Runs these imports. The first that raises an error ends them: the script will raise it again.
    False where a library imported a name that the script would find in its own folder."""
    before = set(sys.modules)
    names: Dict[str, Any] = {"__name__": "brimful_imports"}
    imports = _Imports(argv)
    try:
        for statement in imports.of_script():
            exec(compile(ast.Module([statement], []), "<imports>", "exec"), names)
    except (Exception, SystemExit):
        pass
    return not any(imports.is_users(name) for name in set(sys.modules) - before if "." not in name)


class _Imports:
    def __init__(self, argv: List[str]):
        self._module, self._script = module_and_program(argv[1:])
        self._folder = (
            os.getcwd() if self._module else os.path.dirname(os.path.realpath(self._script))
        )
        self._main = self._script  # the file that runs as __main__
        self._read: Set[str] = set()
        self._over = False

    def of_script(self) -> Iterator[ast.stmt]:
        if self._script:
            yield from self._of_file(self._script, "")
        elif self._module and self.is_users(self._module):
            place = os.path.join(self._folder, *self._module.split("."))
            is_module = os.path.isfile(place + ".py") and not os.path.isfile(
                os.path.join(place, "__init__.py")
            )
            self._main = place + ".py" if is_module else os.path.join(place, "__main__.py")
            yield from self._of_users(self._module)
            if os.path.isfile(self._main) and not self._over:
                yield from self._of_file(self._main, self._module)
        elif self._module:
            self._main = _file_of_library(self._module) or ""
            is_package = os.path.basename(self._main) == "__main__.py"
            package = self._module if is_package else self._module.rpartition(".")[0]
            yield from self._of_file(self._main, package) if self._main else ()

    def is_users(self, name: str) -> bool:
        """Whether Python would find it beside the script. An installed package comes before a
        folder of data of its name.
        """
        top = os.path.join(self._folder, name.partition(".")[0])
        is_module = os.path.isfile(top + ".py") or os.path.isfile(os.path.join(top, "__init__.py"))
        return is_module or (os.path.isdir(top) and not _is_library(name))

    def _of_file(self, file: str, package: str) -> Iterator[ast.stmt]:
        """Statements to run, those of the user's own modules in the place of their import."""
        if file in self._read:
            return
        self._read.add(file)
        with open(file, "rb") as opened:
            body = ast.parse(opened.read()).body
        names = Names()
        for statement in body:
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    yield from self._of_import(
                        alias.name, [], ast.copy_location(ast.Import([alias]), statement)
                    )
                    if self.is_users(alias.name):
                        names.of_unknown(alias)
                    else:
                        names.of_library(alias.name, alias.asname)
            elif isinstance(statement, ast.ImportFrom):
                name = ".".join(
                    filter(None, [_above(package, statement.level), statement.module or ""])
                )
                whole = ast.copy_location(ast.ImportFrom(name, statement.names, 0), statement)
                yield from self._of_import(name, [alias.name for alias in statement.names], whole)
                if self.is_users(name):
                    names.of_unknown(statement)
                else:
                    names.of_library(name, None, statement.names)
            elif self._tries_libraries(statement, names) or _is_repeatable(statement, names):
                yield statement
                names.of_unknown(statement)
            elif not names.only_names(statement) and (
                file == self._main or not _is_for_main(statement)
            ):
                self._over = True
            if self._over:
                return

    def _of_import(self, name: str, parts: List[str], statement: ast.stmt) -> Iterator[ast.stmt]:
        if self._over:  # in the module that was imported before
            return
        if self.is_users(name):
            yield from self._of_users(name)
            for part in parts:
                yield from self._of_users(name + "." + part)
        elif _is_library(name):
            yield statement
        else:
            self._over = name != "__future__"

    def _of_users(self, name: str) -> Iterator[ast.stmt]:
        """Of a module of the user's own, and of the packages above it."""
        words = name.split(".")
        for count in range(1, len(words) + 1):
            place = os.path.join(self._folder, *words[:count])
            package = ".".join(words[:count])
            for file, within in (
                (os.path.join(place, "__init__.py"), package),
                (place + ".py", package.rpartition(".")[0]),
            ):
                if os.path.isfile(file) and not self._over:
                    yield from self._of_file(file, within)

    def _tries_libraries(self, statement: ast.stmt, names: Names) -> bool:
        """Whether it tries imports that are not the user's, and no more. What takes other errors
        may take one that the script would not see."""
        if not isinstance(statement, ast.Try) or not all(map(_is_of_import, statement.handlers)):
            return False
        within = copy.deepcopy(names)
        for part in [
            *statement.body,
            *statement.orelse,
            *statement.finalbody,
            *chain(*(h.body for h in statement.handlers)),
        ]:
            if isinstance(part, ast.Import) and not any(
                self.is_users(alias.name) for alias in part.names
            ):
                for alias in part.names:
                    within.of_library(alias.name, alias.asname)
            elif (
                isinstance(part, ast.ImportFrom)
                and part.level == 0
                and not self.is_users(part.module or "")
            ):
                within.of_library(part.module or "", None, part.names)
            elif not within.are_imported(part) or not within.only_names(part):
                return False
        return all(
            names.are_imported(handler.type) for handler in statement.handlers if handler.type
        )


def _above(package: str, level: int) -> str:
    """The package that a relative import of so many dots begins from; "" for an absolute one."""
    return "" if level == 0 else ".".join(package.split(".")[: len(package.split(".")) - level + 1])


def _is_for_main(statement: ast.stmt) -> bool:
    """Whether a module that is imported passes over it."""
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and ast.unparse(statement.test) == "__name__ == '__main__'"
    )


def _is_of_import(handler: ast.ExceptHandler) -> bool:
    """Whether it takes the errors of imports alone."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return all(
        isinstance(kind, ast.Name) and kind.id in ("ImportError", "ModuleNotFoundError")
        for kind in kinds
    )


def _is_plain(value: ast.expr) -> bool:
    return isinstance(value, (ast.Constant, ast.Name, ast.Attribute))


def _is_repeatable(statement: ast.stmt, names: Names) -> bool:
    """Whether it puts constants into the environment, or filters warnings."""
    if isinstance(statement, ast.Assign):
        places = [
            names.name_of(target.value)
            for target in statement.targets
            if isinstance(target, ast.Subscript)
        ]
        return (
            places == ["os.environ"]
            and names.are_imported(statement)
            and isinstance(statement.value, ast.Constant)
        )
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        not isinstance(call, ast.Call)
        or names.name_of(call.func) not in _REPEATABLE
        or not names.are_imported(call)
    ):
        return False
    return all(map(_is_plain, [*call.args, *(keyword.value for keyword in call.keywords)]))


def _is_library(name: str) -> bool:
    """Whether it lies in this Python's library or among the packages installed beside it."""
    top = name.partition(".")[0]
    if top in ("", "__future__"):
        return False
    if top in sys.builtin_module_names:
        return True
    spec = importlib.machinery.PathFinder.find_spec(top)
    origin = (
        (spec.origin or next(iter(spec.submodule_search_locations or ()), ""))
        if spec is not None
        else ""
    )
    installed = bool({"site-packages", "dist-packages"} & set(origin.split(os.sep)))
    return installed or top in sys.modules or os.path.realpath(origin).startswith(_STANDARD)


def _file_of_library(module: str) -> Optional[str]:
    """Of a module that is run with ``-m``; the packages above it are imported."""
    if not _is_library(module):
        return None
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        spec = importlib.util.find_spec(module + ".__main__")
    return spec.origin if spec is not None else None
