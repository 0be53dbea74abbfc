"""Files of settings that a script reads (YAML, JSON, TOML, INI, Python text that it executes): the
numbers under names that ask for a setting, and other numbers in their place. The files themselves
stay as they are."""

from __future__ import annotations

import builtins
import functools
import io
import os
import re
import sys
from typing import Any, Dict, Iterator, NamedTuple, Optional, Set, Tuple

from brimful_inside.probe.context import guarded, note
from brimful_inside.probe.sandbox.python_files import Replacement
from brimful_inside.probe.script_text import user_code
from brimful_inside.setting_names import setting_of

LARGEST = 1 << 20  # bytes of a file: a larger one holds data
MOST_FILES = 64
_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".env")
_PYTHON = ".py"
_OF_TEXT = ("encoding", "errors", "newline")
_PAIR = re.compile(rb"""(?<![\w.-])["']?(\w+)["']?\s*[:=]\s*["']?([-+.\d][\w.+-]*)""")

# those that were opened -> whether the user's own code opened them
opened: Dict[str, bool] = {}
_written: Set[str] = set()  # by the process itself: what such a file holds is no request


class Written(NamedTuple):
    """A number in a file of settings, under a name that asks for `setting`."""

    file: str
    line: int
    column: int  # in bytes
    setting: str
    name: str
    number: str
    text: str  # its line


def watch() -> None:
    """From here on `opened` has the files of settings that this process opens, and the Python text
    that the user's own code does."""

    @guarded  # an error would be one of the script's own call
    def opens(name: Any, _: Any, flags: int) -> None:
        if not isinstance(name, str):
            return
        is_python = name.endswith(_PYTHON)
        if not (is_python or name.endswith(_SUFFIXES)) or len(opened) >= MOST_FILES:
            return
        path, by_user = os.path.abspath(name), _user_opens(sys._getframe(1))
        if flags & (os.O_WRONLY | os.O_RDWR):
            _written.add(path)
        if path in _written:
            return
        is_small = os.path.isfile(path) and os.path.getsize(path) <= LARGEST
        if is_small and (by_user or not is_python):
            opened.setdefault(path, by_user)

    def hears(event: str, args: Tuple[Any, ...]) -> None:
        if event == "open":  # each look at a frame is an event as well
            opens(*args)

    sys.addaudithook(hears)


def _user_opens(frame: Any) -> bool:
    """Whether the innermost frame that has a file, ours left out, is of the user's own code. An
    import is not."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith("<frozen importlib"):
            return False
        if not path.startswith(("<", user_code.OURS)):
            return user_code.is_users(path)
        frame = frame.f_back
    return False


def numbers() -> Iterator[Written]:
    """Of the files that were opened, Python's left out where a module is made of them."""
    modules = {os.path.realpath(path) for path in user_code.loaded()}
    for path in list(opened):
        if os.path.realpath(path) in modules or not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            lines = file.read(LARGEST).splitlines()
        for line, text in enumerate(lines, 1):
            for match in _PAIR.finditer(text.partition(b"#")[0]):
                name = match[1].decode("utf-8", "replace")
                setting, whole = setting_of(name), text.decode("utf-8", "replace").strip()
                if setting is not None:
                    number = match[2].decode("utf-8", "replace")
                    yield Written(path, line, match.start(2), setting, name, number, whole[:100])


def replace(by_file: Dict[str, Dict[Tuple[int, int], Tuple[int, int]]]) -> None:
    """From here on who reads one of these files (by real path) with `open` reads other numbers:
    (line, column) -> (what stands there, what is to stand there)."""
    original = builtins.open
    replacement = Replacement(functools.partial(_open, original, by_file), original, "io")
    builtins.open = io.open = replacement  # type: ignore[assignment]


def _open(
    original: Any,
    by_file: Dict[str, Dict[Tuple[int, int], Tuple[int, int]]],
    file: Any,
    mode: Any = "r",
    *args: Any,
    **kwargs: Any,
) -> Any:
    reads = isinstance(file, (str, os.PathLike)) and not set(mode) & set("wax+")
    path = os.fspath(file) if reads else ""
    numbers = by_file.get(os.path.realpath(path)) if reads else None
    changed = None
    # Python itself shows the lines of a script in its errors.
    if numbers is not None and (not path.endswith(_PYTHON) or _user_opens(sys._getframe(1))):
        changed = _changed(original, path, numbers)
    if changed is None:
        return original(file, mode, *args, **kwargs)
    raw: Any = io.BytesIO(changed)
    raw.name = path
    if "b" in mode:
        return raw
    named: Dict[str, Any] = {**dict(zip(("buffering", *_OF_TEXT), args)), **kwargs}
    return io.TextIOWrapper(raw, **{key: named[key] for key in _OF_TEXT if key in named})


@guarded
def _changed(
    original: Any, path: str, numbers: Dict[Tuple[int, int], Tuple[int, int]]
) -> Optional[bytes]:
    """The text with the other numbers; None, noted, where it is not the one that they were found
    in."""
    with original(path, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    for (line, column), (before, after) in numbers.items():
        text = lines[line - 1] if line <= len(lines) else b""
        end = column + len(b"%d" % before)
        if text[column:end] != b"%d" % before or text[end : end + 1].isdigit():
            note("%s:%d has no %d any more" % (path, line, before))
            return None
        lines[line - 1] = text[:column] + b"%d" % after + text[end:]
    return b"".join(lines)
