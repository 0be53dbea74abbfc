"""What a training script may call. Each is a no-op without brimful; no torch is imported here."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Optional, Type, TypeVar

from brimful_inside.probe import context as _hub

T = TypeVar("T")


class phase:
    """``with phase("encoding"):`` a named stretch of the run, with a memory peak of its own.

    A stretch whose work was cached says so, by `cached=True` or, where that shows only inside, by setting `.cached` on the
    object that ``with`` gives: its peak says nothing then, and it is reported as cached rather than as small.
    """

    def __init__(self, name: str, cached: bool = False):
        self.name = name
        self.cached = cached
        self._visit: Any = None

    def __enter__(self) -> phase:
        if _hub.context is not None and _hub.context.probe is not None:
            self._visit = _hub.context.probe.enter_named_phase(self.name)
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._visit is not None and _hub.context is not None and _hub.context.probe is not None:
            _hub.context.probe.leave_named_phase(self._visit, self.cached)


def is_imaginary() -> bool:
    """Whether this is a trial on an imaginary card: how long something takes says nothing there, and need not be measured."""
    return _hub.context is not None and _hub.context.config.device == "imaginary"


def keeps_writes_out() -> bool:
    """Whether this is a trial whose writes are kept out of the user's files. It shall not go on from a checkpoint either: a
    training that was finished there would have no step left to look at."""
    return _hub.context is not None and _hub.context.config.keep_out


def ends_with(error: BaseException) -> None:
    """The script ends with `error`, which it tells in sentences of its own: known as if it had left the script as it was."""
    probe = _hub.context.probe if _hub.context is not None else None
    if probe is not None:
        probe.failures.left_the_script(error)


def setting(name: str, default: T) -> T:
    """The planned value of a setting, in the type of `default`; `default` itself without brimful or without a plan for it.

    A value that cannot be turned into that type is an error of the plan: it is noted, and `default` is given.
    """
    context = _hub.context
    if context is None:
        return default
    if name not in context.config.settings:
        known = ", ".join(sorted(context.config.settings)) or "none"
        context.note("the script asked for the setting %r, which this trial does not set (it sets: %s)" % (name, known))
        return default
    value = context.config.settings[name]
    try:
        return _as_type_of(default, value)
    except (TypeError, ValueError):
        context.note(
            "the setting %r is %r, which is no %s: the script's default was used" % (name, value, type(default).__name__)
        )
        return default


def _as_type_of(default: Any, value: Any) -> Any:
    if default is None or (isinstance(value, type(default)) and not isinstance(value, bool)):
        return value
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
        if str(value).lower() not in words:
            raise ValueError(value)
        return words[str(value).lower()]
    if isinstance(default, int) and float(value) != int(float(value)):
        raise ValueError(value)
    return type(default)(float(value)) if isinstance(default, int) and isinstance(value, str) else type(default)(value)
