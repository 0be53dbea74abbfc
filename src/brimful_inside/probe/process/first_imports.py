"""The libraries that a script and its own modules import at the left margin, up to where they
change the environment, which a library may read while it is imported.

Constants that they put there are there for the imports after it too. What else stands between is
left to the script, which may change by that what it imports: where a forked trial fails, one that
is not forked shows whether that is why (`brimful.trials.session`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from typing import Any, Dict, Iterator, List, Set

from brimful_inside.launchers import python_words
from brimful_inside.probe.script_text.user_code import is_users

_LINES = re.compile(
    r"^(?:from +(?P<whole>[\w.]+) +import +(?:\([^)]*\)|[^\n(]*)|import +(?P<name>[\w.]+)[^\n]*"
    r"|(?P<constant>os\.environ(?:\[TEXT\] *= *TEXT|\.setdefault\(TEXT, *TEXT\)) *(?:#[^\n]*)?$)"
    r"|[^#\n]*(?:environ(?:\[[^\n]*\] *=[^=]|\.(?:setdefault|update|pop))|putenv|dotenv))".replace(
        "TEXT", r"""(?:'[^'\n]*'|"[^"\n]*")"""
    ),
    re.MULTILINE,
)
# PyTorch imports it, and sympy by that, where it first asks whether a size is a symbol.
_LATER = "torch.fx.experimental.symbolic_shapes"


class _Over(Exception):
    """The imports with which the script begins end here."""


def import_libraries(argv: List[str]) -> bool:
    """Runs these imports. One that raises an error raises it again in the script. False where a
    library imported a name that the script would find in its own folder."""
    words, before = python_words(argv), set(sys.modules)
    script = os.path.realpath(words.script)
    folder = os.getcwd() if words.module else os.path.dirname(script)
    names: Dict[str, Any] = {"__name__": "brimful_imports"}
    with contextlib.suppress(_Over, OSError, ValueError):
        for statement in _of_module(words.module, script, folder):
            with contextlib.suppress(Exception, SystemExit):
                exec(statement, names)
    if "torch" in sys.modules:
        importlib.import_module(_LATER)
    imported = {name.partition(".")[0] for name in set(sys.modules) - before}
    return not any(next(_files_of(name, folder), "") for name in imported)


def _of_module(module: str, script: str, folder: str) -> Iterator[str]:
    """The statements of the script, or of a module that is run with ``-m``."""
    read: Set[str] = set()
    own = [*_files_of(module + ".__main__", folder)] if module else [script]
    for file in own:
        yield from _of_file(file, folder, read)
    if not own and _is_library(module):
        yield "import " + module.rpartition(".")[0]


def _of_file(file: str, folder: str, read: Set[str]) -> Iterator[str]:
    if file in read:
        return
    read.add(file)
    with open(file, encoding="utf-8", errors="replace") as opened:
        text = opened.read()
    for line in _LINES.finditer(text):
        statement, _, rest = line[0].partition(";")
        module = line["whole"] or line["name"]
        if "environ" in rest or not (module or line["constant"]):
            raise _Over
        name = (module or "").lstrip(".")
        above = file.split(os.sep)[: len(name) - len(module or "")]
        place = os.sep.join(above) if above else folder
        parts = re.findall(r"\w+", statement.partition(" import ")[2])
        own = [path for part in ["", *parts] for path in _files_of(name + "." + part, place)]
        for path in own:
            yield from _of_file(path, folder, read)
        if not own and (line["constant"] or _is_library(module)):
            yield statement


def _files_of(name: str, folder: str) -> Iterator[str]:
    """The user's own files that an import of this name runs."""
    words = [word for word in name.split(".") if word]
    for count in range(1, len(words) + 1):
        place = os.path.join(folder, *words[:count])
        yield from filter(os.path.isfile, (os.path.join(place, "__init__.py"), place + ".py"))


def _is_library(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.modules or not top:
        return top in sys.modules
    spec = importlib.util.find_spec(top)
    return spec is not None and spec.origin is not None and not is_users(spec.origin)
