"""How the settings of a training are checked when they are made."""

import dataclasses
import functools
import numbers
import os
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brimful.errors import UsageError

_WORDS = {
    bool: "neither True nor False",
    int: "no whole number",
    float: "no number",
    str: "no text",
    Path: "no path",
}


def require(holds: bool, name: str, value: object, problem: str, suggestion: str = "") -> None:
    """Raises UsageError "config.NAME = VALUE: PROBLEM" unless it `holds`."""
    if not holds:
        raise UsageError(f"config.{name} = {value!r}: {problem}", suggestion=suggestion)


def refuse_unread(
    settings: Any, prefix: str, choice: str, read_by: Mapping[str, tuple[str, ...]]
) -> None:
    """Refuses a setting that `choice` does not read and that is not at its default: nobody shall
    believe it is in force.
    """
    for field in dataclasses.fields(settings):
        readers, value = read_by.get(field.name), getattr(settings, field.name)
        if readers and choice not in readers and value != field.default:
            raise UsageError(
                f"config.{prefix}.{field.name} = {value!r}: {choice} has no such setting",
                f"It is one of {' and '.join(readers)}, and would have no effect.",
                f"Leave it at {field.default!r}, or choose {readers[0]}.",
            )


class Rule(NamedTuple):
    """Each of `names` (divided by spaces) that is set holds to it: else "config.NAME = VALUE:
    PROBLEM".
    """

    names: str
    holds: Callable[[Any], Any]
    problem: str
    suggestion: str = ""


def one_of(name: str, choices: tuple[str, ...]) -> Rule:
    listed = f"Name one of {', '.join(choices)}."
    return Rule(name, choices.__contains__, "there is no such choice", listed)


def check(settings: Any, prefix: str, *rules: Rule) -> None:
    """Raises UsageError for a setting of another type than its field's, and for one that breaks a
    rule. `prefix`: "batch." of config.batch.
    """
    check_types(settings, f"config.{prefix}".rstrip("."))
    for rule in rules:
        for name in rule.names.split():
            value = getattr(settings, name)
            holds = value is None or bool(rule.holds(value))
            require(holds, prefix + name, value, rule.problem, rule.suggestion)


def check_types(settings: Any, prefix: str) -> None:
    """Holds each field of a dataclass to its annotation (bool, int, float, str, Path, another
    dataclass, or None beside one).

    A whole number does where a number is asked for, and text where a path is; numbers of other
    libraries (NumPy's) become Python's own, which are what JSON has. True is no number. Raises
    UsageError that names ``prefix.field``.
    """
    for name, kind, optional in _fields(type(settings)):
        value = getattr(settings, name)
        if value is None and optional:
            continue
        if not _is(value, kind):
            none = " and not None" if optional else ""
            raise UsageError(
                f"{prefix}.{name} = {value!r} is {_WORDS.get(kind, f'no {kind.__name__}')}{none}."
            )
        if isinstance(value, numbers.Number) and type(value) not in (bool, int, float):
            number: Any = value
            object.__setattr__(settings, name, int(number) if kind is int else float(number))


def _is(value: object, kind: type) -> bool:
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is Path:
        return isinstance(value, (str, os.PathLike))
    return isinstance(value, {int: numbers.Integral, float: numbers.Real}.get(kind, kind))


@functools.cache
def _fields(settings: type) -> tuple[tuple[str, type, bool], ...]:
    """Name, type, and whether it may be None."""
    hints = typing.get_type_hints(settings)
    return tuple(
        (field.name, *_without_none(hints[field.name])) for field in dataclasses.fields(settings)
    )


def _without_none(hint: Any) -> tuple[type, bool]:
    if not isinstance(hint, types.UnionType):
        return hint, False
    (kind,) = (kind for kind in typing.get_args(hint) if kind is not types.NoneType)
    return kind, True
