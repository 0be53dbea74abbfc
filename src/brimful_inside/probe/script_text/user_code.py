"""How Python gets the code of the user's own files: as the script, with ``-m``, by an import, in a
spawned process.

`enter` lets functions change the tree of each such file, one after another. Files of packages
(site-packages, the standard library) are left alone, and nothing is written: neither the files nor
bytecode.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import io
import os
import sys
import sysconfig
from typing import Any, Callable, List, Sequence

from brimful_inside.probe.context import note, note_own_error, own_script, patch

#: Changes the tree of a text, by its path, and says whether it did. Raises LookupError where a
#: number is not there.
Change = Callable[[ast.Module, bytes, str], bool]

FIRST = "__brimful_first__"  # in builtins: what the script calls before all else
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
# Python takes `__main__.__file__` away when the script is over, before what runs at exit.
_SCRIPT = os.path.abspath(own_script())
OURS = os.path.abspath(__file__).rpartition("probe" + os.sep)[0]
_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in (*map(sysconfig.get_path, ("stdlib", "platstdlib", "scripts")), OURS)
)


def is_users(path: str) -> bool:
    """Whether a file is neither an installed package's (nor its entry point), nor Python's, nor
    ours."""
    # most files of a process are a package's by their name alone, and links take long to follow
    if path.startswith(("<", _STANDARD_LIBRARY)) or any(part in path for part in _PACKAGES):
        return False
    real = os.path.realpath(path)
    return not any(part in real for part in _PACKAGES) and not real.startswith(_LIBRARIES)


def loaded() -> List[str]:
    """The user's own files that this process has loaded."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())} | {_SCRIPT}
    return sorted(
        path for path in files if isinstance(path, str) and path.endswith(".py") and is_users(path)
    )


def enter(changes: Sequence[Change]) -> None:
    """From here on the user's files run as these make them. Call it once, before the script."""

    def code_of(path: str, begins_with: Any = None) -> Any:
        """None: Python's own way."""
        try:
            if not is_users(path):
                return None
            with io.FileIO(path) as file:  # `open` may give other numbers
                source = file.read()
            tree = ast.parse(source, path)
            real = os.path.realpath(path)
            if not sum(change(tree, source, real) for change in changes):
                return None
            ast.fix_missing_locations(tree)
            if begins_with is not None:
                _insert_call(tree, begins_with)
            return compile(tree, path, "exec", dont_inherit=True)
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None  # Python itself says what is wrong
        except LookupError as error:
            note("a number that brimful sets was not found: %s" % error)
            return None
        except Exception:
            note_own_error("the reading of %s" % path)
            return None

    def get_code(original: Any, loader: Any, name: Any) -> Any:
        code = code_of(getattr(loader, "path", ""))
        return original(loader, name) if code is None else code

    patch(importlib.machinery.SourceFileLoader, "get_code", get_code)
    _in_run_path(code_of)
    script = own_script()  # the file that this process was started with
    if os.path.isfile(script):
        sys.path_hooks.insert(0, _Script(script, code_of))


def _in_run_path(code_of: Callable[[str], Any]) -> None:
    """`runpy` compiles the main script of a spawned process itself, by the built-in that this name
    hides.
    """
    import runpy

    def compiled(source: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        code = code_of(os.fsdecode(filename))
        return compile(source, filename, *args, **kwargs) if code is None else code

    runpy.compile = compiled  # type: ignore[attr-defined]


class _Script:
    """In `sys.path_hooks`, which Python asks whether its script is an archive that has a
    ``__main__``: for once it is, and this is what finds it there.
    """

    def __init__(self, path: str, code_of: Callable[..., Any]):
        self._absolute = os.path.abspath(path)
        self._code_of = code_of
        self._path: Any = None  # as Python asked for it
        self._code: Any = None

    def __call__(self, path: str) -> Any:
        if self._path is not None or os.path.abspath(path) != self._absolute:
            raise ImportError
        self._path = path
        self._code = self._code_of(path, self._as_script)
        if self._code is None:
            raise ImportError
        return self

    def find_spec(self, name: str, target: Any = None) -> Any:
        if name != "__main__":
            return None
        spec = importlib.machinery.ModuleSpec(name, self, origin=self._path)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def get_code(self, name: str) -> Any:
        """Python has put the script itself in front of `sys.path`, where its folder belongs."""
        sys.path_importer_cache.pop(self._path, None)
        if sys.path and sys.path[0] == self._path:
            sys.path[:1] = (
                []
                if getattr(sys.flags, "safe_path", False)
                else [os.path.dirname(os.path.realpath(self._path))]
            )
        return self._code

    def is_package(self, name: str) -> bool:
        return False

    def _as_script(self, names: Any) -> None:
        """The globals of a script, which is no archive."""
        names["__spec__"] = names["__package__"] = names["__cached__"] = None
        names["__loader__"] = importlib.machinery.SourceFileLoader("__main__", self._path)


def _insert_call(tree: ast.Module, function: Callable[[Any], None]) -> None:
    """``function(globals())`` before the first statement, in its line; behind a docstring and
    imports from the future.
    """
    setattr(builtins, FIRST, function)
    for at, statement in enumerate(tree.body):
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not (is_text and at == 0) and not (
            isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        ):
            call = ast.Expr(
                ast.Call(
                    ast.Name(FIRST, ast.Load()),
                    [ast.Call(ast.Name("globals", ast.Load()), [], [])],
                    [],
                )
            )
            tree.body.insert(at, ast.fix_missing_locations(ast.copy_location(call, statement)))
            return
