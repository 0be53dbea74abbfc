"""The imports with which a script begins, as far as they are of libraries: up to its first
statement that does anything but name things (`_only_names`).

What follows such a statement may hang on it, and is left to the script itself. Constants that it
puts into the environment are put there for the imports after it too, and warnings are filtered: the
script will do both again, to the same end.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from itertools import chain
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

from brimful_inside.launchers import python_words

Import = Union[ast.Import, ast.ImportFrom]

_REPEATABLE = (
    "os.environ.setdefault",
    "os.environ.update",
    "warnings.filterwarnings",
    "warnings.simplefilter",
)
_STANDARD = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")
)


# What these give can be computed twice, and computing it changes nothing.
_HARMLESS = {
    "dataclasses.field",
    "logging.getLogger",
    "os.environ.get",
    "os.getenv",
    "os.path.abspath",
    "os.path.dirname",
    "os.path.join",
    "pathlib.Path",
    "re.compile",
    "torch.cuda.is_available",
    "torch.device",
    "typing.TypeVar",
}


class _Over(Exception):
    """The imports with which the script begins end here."""


def import_libraries(argv: List[str]) -> bool:
    """Runs these imports. The first that raises an error ends them: the script will raise it again.
    False where a library imported a name that the script would find in its own folder."""
    before = set(sys.modules)
    names: Dict[str, Any] = {"__name__": "brimful_imports"}

    def run(statement: ast.stmt) -> None:
        exec(compile(ast.Module([statement], []), "<imports>", "exec"), names)

    imports = _Imports(argv, run)
    with contextlib.suppress(Exception, SystemExit):
        imports.of_script()
    return not any(imports.is_users(name) for name in set(sys.modules) - before if "." not in name)


class _Imports:
    """Calls `run` with each statement to run, those of the user's own modules in the place of their
    import, and raises `_Over` where they end before the script does."""

    def __init__(self, argv: List[str], run: Callable[[ast.stmt], None]):
        self._module, self._script = python_words(argv)[:2]
        self._folder = (
            os.getcwd() if self._module else os.path.dirname(os.path.realpath(self._script))
        )
        self._main = self._script  # the file that runs as __main__
        self._run = run
        self._read: Set[str] = set()

    def of_script(self) -> None:
        package = ""
        if self._module and self.is_users(self._module):
            package = self._module
            place = os.path.join(self._folder, *package.split("."))
            is_module = os.path.isfile(place + ".py") and not os.path.isfile(
                os.path.join(place, "__init__.py")
            )
            self._main = place + ".py" if is_module else os.path.join(place, "__main__.py")
            self._of_users(package)
        elif self._module:
            self._main = _file_of_library(self._module) or ""
            is_package = os.path.basename(self._main) == "__main__.py"
            package = self._module if is_package else self._module.rpartition(".")[0]
        self._of_file(self._main, package)

    def is_users(self, name: str) -> bool:
        """Whether Python would find it beside the script. An installed package comes before a
        folder of data of its name.
        """
        top = os.path.join(self._folder, name.partition(".")[0])
        is_module = os.path.isfile(top + ".py") or os.path.isfile(os.path.join(top, "__init__.py"))
        return is_module or (os.path.isdir(top) and not _is_library(name))

    def _of_file(self, file: str, package: str) -> None:
        if file in self._read or not os.path.isfile(file):
            return
        self._read.add(file)
        with open(file, "rb") as opened:
            body = ast.parse(opened.read()).body
        names: Dict[str, str] = {}
        for module, statement in _one_by_one(body, package):
            if module is not None and self.is_users(module):
                self._of_users(module)
                for part in statement.names if isinstance(statement, ast.ImportFrom) else ():
                    self._of_users(module + "." + part.name)
            elif module is not None and _is_library(module):
                self._run(statement)
                names.update(_names_of(module, statement))
            elif self._tries_libraries(statement, names) or _is_repeatable(statement, names):
                self._run(statement)
            elif not (
                module == "__future__"
                or _only_names(statement, names)
                or (file != self._main and _is_for_main(statement))
            ):
                raise _Over

    def _of_users(self, name: str) -> None:
        """Of a module of the user's own, and of the packages above it."""
        words = name.split(".")
        for count in range(1, len(words) + 1):
            place = os.path.join(self._folder, *words[:count])
            self._of_file(os.path.join(place, "__init__.py"), ".".join(words[:count]))
            self._of_file(place + ".py", ".".join(words[: count - 1]))

    def _tries_libraries(self, statement: ast.stmt, names: Dict[str, str]) -> bool:
        """Whether it tries imports that are not the user's, and no more. What takes other errors
        may take one that the script would not see."""
        if not isinstance(statement, ast.Try) or not all(map(_is_of_import, statement.handlers)):
            return False
        parts = [*statement.body, *statement.orelse, *statement.finalbody]
        parts += chain(*(handler.body for handler in statement.handlers))
        return all(
            _only_names(part, names) if module is None else not self.is_users(module)
            for module, part in _one_by_one(parts, "")
        )


def _one_by_one(
    statements: Iterable[ast.stmt], package: str
) -> Iterator[Tuple[Optional[str], Any]]:
    """These of a module of `package`, each import of one module, which comes first, and by its
    whole name."""
    for statement in statements:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                yield alias.name, ast.copy_location(ast.Import([alias]), statement)
        elif isinstance(statement, ast.ImportFrom):
            # the package that its dots begin from
            above = package.split(".")[: package.count(".") + 2 - statement.level]
            name = ".".join(filter(None, [*(above if statement.level else ()), statement.module]))
            yield name, ast.copy_location(ast.ImportFrom(name, statement.names, 0), statement)
        else:
            yield None, statement


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


def _names_of(module: str, statement: Import) -> Dict[str, str]:
    """By what an import calls them here: what the library calls them."""
    if isinstance(statement, ast.ImportFrom):
        return {part.asname or part.name: module + "." + part.name for part in statement.names}
    top = module.partition(".")[0]
    return {part.asname or top: module if part.asname else top for part in statement.names}


def _name_of(function: ast.expr, names: Dict[str, str]) -> str:
    """What a library calls it; "" where it is no library's."""
    first, dot, rest = ast.unparse(function).partition(".")
    return names[first] + dot + rest if first in names else ""


def _only_names(statement: ast.stmt, names: Dict[str, str]) -> bool:
    """Whether it is a function, a class, a text, or a value for which nothing is called but what is
    harmless: no import after it depends on it."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    return all(isinstance(target, ast.Name) for target in targets) and not any(
        isinstance(node, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom))
        or (isinstance(node, ast.Call) and _name_of(node.func, names) not in _HARMLESS)
        for node in ast.walk(statement)
    )


def _is_repeatable(statement: ast.stmt, names: Dict[str, str]) -> bool:
    """Whether it puts constants into the environment, or filters warnings. Where it refers to what
    was passed over, it fails when it is run, and ends the imports."""
    if isinstance(statement, ast.Assign):
        (target, *others) = statement.targets
        return (
            not others
            and isinstance(target, ast.Subscript)
            and _name_of(target.value, names) == "os.environ"
            and isinstance(statement.value, ast.Constant)
        )
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and _name_of(call.func, names) in _REPEATABLE
        and all(
            isinstance(value, (ast.Constant, ast.Name, ast.Attribute))
            for value in [*call.args, *(keyword.value for keyword in call.keywords)]
        )
    )


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
