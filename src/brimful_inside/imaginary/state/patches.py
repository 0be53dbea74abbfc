"""Attributes replaced by others, and restored in reverse order."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Iterator, List

_ABSENT = object()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A context in which ``owner.name`` is `value`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


class Patches:
    """What was replaced while the imaginary GPU is there."""

    def __init__(self) -> None:
        self._undo: List[Callable[[], Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Put `value` at ``owner.name``; the answer is what stood there (None if nothing did)."""
        before = vars(owner).get(name, _ABSENT)
        self._undo.append(
            partial(delattr, owner, name)
            if before is _ABSENT
            else partial(setattr, owner, name, before)
        )
        setattr(owner, name, value)
        return None if before is _ABSENT else before

    def function(self, owner: Any) -> Callable[[Any], Any]:
        """A decorator: the function stands at the attribute of its name."""

        def put(function: Any) -> Any:
            self.set(owner, function.__name__, function)
            return function

        return put

    def set_all(self, owner: Any, **values: Any) -> None:
        for name, value in values.items():
            self.set(owner, name, value)

    def set_existing(self, owner: Any, name: str, value: Any) -> None:
        """As `set`, where the attribute is there; older and newer versions of torch may lack it."""
        if hasattr(owner, name):
            self.set(owner, name, value)

    def undo_by(self, action: Callable[[], Any]) -> None:
        self._undo.append(action)

    def restore(self) -> None:
        while self._undo:
            self._undo.pop()()
