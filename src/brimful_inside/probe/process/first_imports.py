"""The imports with which a script begins, as far as they are of libraries: up to its first
statement that does anything but name things (`_Names.only_names`).

What follows such a statement may hang on it, and is left to the script itself. Constants that it
puts into the environment are put there for the imports after it too, and warnings are filtered: the
script will do both again, to the same end.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from itertools import chain
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set, Tuple, Union

from brimful_inside.probe.context import module_and_program

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


class _Names:
    """What the names of one file are, as far as what was read of it tells."""

    def __init__(self) -> None:
        self._libraries: Dict[str, str] = {}  # what libraries call what this file calls so
        self._bound: Set[str] = set()  # all that this file gives a meaning

    def of_library(self, statement: Import) -> None:
        """After an import of a library."""
        module = "%s." % statement.module if isinstance(statement, ast.ImportFrom) else ""
        for part in statement.names:
            name = part.asname or (part.name if module else part.name.partition(".")[0])
            self._bind(name)
            self._libraries[name] = module + part.name if module or part.asname else name

    def of_unknown(self, statement: ast.AST) -> None:
        """After a statement that gives its names things of which nothing is known."""
        for node in ast.walk(statement):
            if isinstance(node, ast.alias):
                self._bind(node.asname or node.name.partition(".")[0])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._bind(node.id)
            else:
                self._bind(getattr(node, "name", None) or "")

    def _bind(self, name: str) -> None:
        self._libraries.pop(name, None)
        self._bound.add(name)
        if name == "*":  # any name
            self._libraries.clear()
            self._bound.update(dir(builtins))

    def are_imported(self, statement: ast.AST) -> bool:
        """Whether it refers to libraries and Python's own names alone, and so to nothing that was
        passed over."""
        used = {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        pythons = {name for name in dir(builtins) if not name.startswith("__")} - self._bound
        return used <= pythons | set(self._libraries)

    def only_names(self, statement: ast.stmt) -> bool:
        """Whether it is a function, a class, or a value for which nothing is called but what is
        harmless: what follows finds all as it would without it."""
        made: List[Optional[ast.AST]] = []
        body: List[ast.stmt] = []
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if not all(isinstance(target, ast.Name) for target in targets):
                return False
            made = [statement.value]
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            made = [*statement.args.defaults, *statement.args.kw_defaults]
        elif isinstance(statement, ast.ClassDef):
            made, body = [*statement.bases, *statement.keywords], statement.body
        elif not isinstance(statement, ast.Pass):
            return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        decorators = getattr(statement, "decorator_list", [])
        harmless = all(map(self._is_librarys, decorators)) and all(map(self._is_value, made))
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            self.of_unknown(statement)
        else:
            self._bind(getattr(statement, "name", ""))
        return harmless and all(map(self.only_names, body))

    def _is_librarys(self, decorator: ast.AST) -> bool:
        """Whether a library, or Python, decorates."""
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        given = [*decorator.args, *decorator.keywords] if isinstance(decorator, ast.Call) else []
        return self.are_imported(called) and all(map(self._is_value, given))

    def _is_value(self, value: Optional[ast.AST]) -> bool:
        """Whether nothing is called for it but what is harmless."""
        return value is None or not any(
            isinstance(node, (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom))
            or (isinstance(node, ast.Call) and self.name_of(node.func) not in _HARMLESS)
            for node in ast.walk(value)
        )

    def name_of(self, function: ast.expr) -> Optional[str]:
        """What a library calls it; None where it is no library's."""
        words = []
        while isinstance(function, ast.Attribute):
            words.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name) or function.id not in self._libraries:
            return None
        return ".".join([self._libraries[function.id], *reversed(words)])


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
        self._module, self._script = module_and_program(argv[1:])
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
        names = _Names()
        for module, statement in _one_by_one(body, package):
            if module is not None:
                self._of_import(module, statement)
                if self.is_users(module):
                    names.of_unknown(statement)
                else:
                    names.of_library(statement)
            elif self._tries_libraries(statement, names) or _is_repeatable(statement, names):
                self._run(statement)
                names.of_unknown(statement)
            elif not names.only_names(statement) and (
                file == self._main or not _is_for_main(statement)
            ):
                raise _Over

    def _of_import(self, module: str, statement: Import) -> None:
        if self.is_users(module):
            self._of_users(module)
            for part in statement.names if isinstance(statement, ast.ImportFrom) else ():
                self._of_users(module + "." + part.name)
        elif _is_library(module):
            self._run(statement)
        elif module != "__future__":
            raise _Over

    def _of_users(self, name: str) -> None:
        """Of a module of the user's own, and of the packages above it."""
        words = name.split(".")
        for count in range(1, len(words) + 1):
            place = os.path.join(self._folder, *words[:count])
            self._of_file(os.path.join(place, "__init__.py"), ".".join(words[:count]))
            self._of_file(place + ".py", ".".join(words[: count - 1]))

    def _tries_libraries(self, statement: ast.stmt, before: _Names) -> bool:
        """Whether it tries imports that are not the user's, and no more. What takes other errors
        may take one that the script would not see."""
        if not isinstance(statement, ast.Try) or not all(map(_is_of_import, statement.handlers)):
            return False
        within = copy.deepcopy(before)
        parts = [*statement.body, *statement.orelse, *statement.finalbody]
        parts += chain(*(handler.body for handler in statement.handlers))
        if any(getattr(part, "level", 0) for part in parts):  # a relative import
            return False
        for module, part in _one_by_one(parts, ""):
            if module is not None and not self.is_users(module):
                within.of_library(part)
            elif not within.are_imported(part) or not within.only_names(part):
                return False
        return all(
            before.are_imported(handler.type) for handler in statement.handlers if handler.type
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


def _is_repeatable(statement: ast.stmt, names: _Names) -> bool:
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
    return (
        isinstance(call, ast.Call)
        and names.name_of(call.func) in _REPEATABLE
        and names.are_imported(call)
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
