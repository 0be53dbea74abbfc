"""What a training script may call. Each is a no-op without brimful; no torch is imported here."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Optional, Type, TypeVar

from brimful_inside.probe.context import call_probe, current_context, current_probe

T = TypeVar("T")

_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


class phase:
    """``with phase("encoding"):`` a named part of the run, with a memory peak of its own.

    Where the work was cached, say so by `cached=True` or, where that shows only inside, by setting
    `.cached` on the object that ``with`` gives: the peak means nothing then, and brimful reports
    "cached" instead of a small number."""

    def __init__(self, name: str, cached: bool = False):
        self.name = name
        self.cached = cached
        self._visit: Any = None

    def __enter__(self) -> phase:
        probe = current_probe()
        self._visit = probe.phases.enter(self.name) if probe is not None else None
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._visit is not None:
            call_probe("phases.leave", self._visit, self.cached)


class tried(phase):
    """``with tried("eval"):`` work of a phase done once before the first step, to see whether it
    fits: its memory is that phase's, and what follows is the training."""

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._visit is not None:
            call_probe("activity.tried", self._visit, error is not None)


def is_imaginary() -> bool:
    """Whether this is a trial on an imaginary card: durations mean nothing there, and need not be
    measured."""
    context = current_context()
    return context is not None and context.config.device == "imaginary"


def keeps_writes_out() -> bool:
    """Whether this is a trial whose writes stay out of the user's files. It shall not resume from a
    checkpoint either: a training that is finished there has no step left to measure."""
    context = current_context()
    return context is not None and context.config.keep_out


def ends_with(error: BaseException) -> None:
    """The script ends because of `error`, which it prints in its own words: reported as if it had
    left the script."""
    call_probe("failures.left_the_script", error)


def resumes_by_itself() -> None:
    """The script goes on from its own newest checkpoint wherever it is started again."""
    context = current_context()
    if context is not None:
        context.resumes_itself = True


def report_loss(loss: Optional[float]) -> None:
    """The loss as the training means it, a mean over all ranks, on the host: shown from the first
    call on in place of what backward() is called on, which may be scaled or a part of the mean.
    None: not known (yet)."""
    call_probe("losses.report", loss)


def report_batch_asked(size: int) -> None:
    """The batch size that the script was asked for, by a preset or a default of its own, where it
    trains on smaller ones because its data has no more samples."""
    context = current_context()
    if context is not None:
        context.batch_asked = size


def setting(name: str, default: T) -> T:
    """The planned value of a setting, in the type of `default`; `default` itself without brimful or
    without a plan for it. A value that cannot be turned into that type is an error of the plan: a
    note reports it, and `default` is returned."""
    context = current_context()
    if context is None:
        return default
    if name not in context.config.settings:
        known = ", ".join(sorted(context.config.settings)) or "none"
        context.note(
            "the script reads the setting %r, which this trial does not set (it sets: %s)"
            % (name, known)
        )
        return default
    value = context.config.settings[name]
    try:
        return _as_type_of(default, value)
    except (TypeError, ValueError):
        kind = type(default).__name__
        context.note(
            "the setting %r is %r, which is no %s: the script's default was used"
            % (name, value, kind)
        )
        return default


def _as_type_of(default: Any, value: Any) -> Any:
    if default is None or (isinstance(value, type(default)) and not isinstance(value, bool)):
        return value
    if isinstance(default, bool):
        if str(value).lower() not in _WORDS:
            raise ValueError(value)
        return _WORDS[str(value).lower()]
    if isinstance(default, int):
        if float(value) != int(float(value)):
            raise ValueError(value)
        return type(default)(float(value)) if isinstance(value, str) else type(default)(value)
    return type(default)(value)
