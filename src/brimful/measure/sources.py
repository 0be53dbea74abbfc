"""The files that a command is made of: what its trials loaded, configurations that it names, and
files in which a number is set."""

import ast
import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful import files
from brimful.values import TrialResult

_SUFFIXES = {".py", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".sh"}
_MOST_BYTES = 1 << 20  # of a named file: a larger one is data (assumed)


def digests(words: Sequence[str], results: Iterable[TrialResult]) -> dict[str, str]:
    """The digest of each file, by its path as seen from the working folder where it lies in
    there.
    """
    named = {word.partition("=")[2] or word for word in words}
    named = {name for name in named if Path(name).suffix in _SUFFIXES and _is_small(name)}
    used: set[str] = set()
    for result in results:
        used |= {path for report in result.reports for path in report.sources}
        used |= {place.file for place in result.trial.command.places.values()}
    by_path = {_from_here(path): _digest(path) for path in named | used}
    return {path: digest for path, digest in sorted(by_path.items()) if digest is not None}


@dataclass(frozen=True)
class Differences:
    """Files that are not what they were."""

    changed: tuple[str, ...]
    missing: tuple[str, ...]  # in the working folder
    # missing, and outside of it: another machine may have them in another place
    elsewhere: tuple[str, ...]


def differences(digests: Mapping[str, str]) -> Differences:
    now = {path: _digest(path) for path in digests}
    gone = [path for path, digest in now.items() if digest is None]
    return Differences(
        changed=tuple(
            path
            for path, digest in now.items()
            if digest and not {*digest.split()} & {*digests[path].split()}
        ),
        missing=tuple(path for path in gone if not os.path.isabs(path)),
        elsewhere=tuple(path for path in gone if os.path.isabs(path)),
    )


def are_as_they_were(digests: Mapping[str, str]) -> bool:
    """Whether all files are here, byte for byte: a comment above a line moves it."""
    now = {path: _digest(path) or "" for path in digests}
    return bool(now) and all(now[path].split()[:1] == digests[path].split()[:1] for path in now)


def _from_here(path: str) -> str:
    whole, here = os.path.realpath(path), os.path.realpath(os.getcwd())
    return os.path.relpath(whole, here) if whole.startswith(here + os.sep) else whole


def _is_small(path: str) -> bool:
    try:
        return os.path.getsize(path) <= _MOST_BYTES
    except OSError:
        return False


def _digest(path: str) -> str | None:
    """Of its bytes, and of Python also of what they say: comments and blank lines change nothing.
    Either is enough, since another version of Python may see the same code otherwise."""
    try:
        content = files.read(path, follows_links=True)
    except OSError:
        return None
    kept = [content]
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        kept += [ast.dump(ast.parse(content)).encode()] if path.endswith(".py") else []
    return " ".join(hashlib.blake2b(part, digest_size=16).hexdigest() for part in kept)
