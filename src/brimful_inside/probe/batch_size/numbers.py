"""An integer that knows where it comes from: a literal of the script's text, or the call that made
a loader with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Tuple


@dataclass(frozen=True)
class Literal:
    """An integer in the script's text."""

    file: str
    line: int
    column: int  # in bytes, as in `ast`
    number: int
    text: str  # its line


class Number(int):
    """An int in all that it does. Multiplied, or divided without a remainder's part, by another it
    still knows its literal (a batch per process, or of all cards); any other arithmetic gives a
    plain int."""

    literal: Optional[Literal]
    calls: Optional[Tuple[str, ...]]

    def __new__(
        cls, value: int, literal: Optional[Literal] = None, calls: Optional[Tuple[str, ...]] = None
    ) -> Number:
        self = super().__new__(cls, value)
        self.literal, self.calls = literal, calls
        return self

    def _derived(self, value: Any, other: Any) -> Any:
        if not isinstance(value, int):
            return value
        literal = other.literal if _is_better(other, self) else self.literal
        return Number(value, literal) if literal is not None else value

    def __mul__(self, other: Any) -> Any:
        return self._derived(int.__mul__(self, other), other)

    def __rmul__(self, other: Any) -> Any:
        return self._derived(int.__rmul__(self, other), other)

    def __floordiv__(self, other: Any) -> Any:
        return self._derived(int.__floordiv__(self, other), None)

    def __copy__(self) -> Number:
        return self

    def __deepcopy__(self, memo: Any) -> Number:
        return self

    def __reduce__(self) -> Any:
        return int, (int(self),)  # in a file it is an int

    def keep_place(self) -> Any:
        """As `__reduce__`, for a process that this one starts."""
        return Number, (int(self), self.literal, self.calls)


def _is_better(other: Any, number: Number) -> bool:
    """Of two literals that are multiplied, the one in whose line a batch is named is meant."""
    theirs: Any = other.literal if isinstance(other, Number) else None
    if theirs is None or number.literal is None:
        return theirs is not None
    return "batch" in theirs.text.lower() and "batch" not in number.literal.text.lower()


def places_of(number: Any) -> Tuple[Optional[Literal], Optional[List[str]]]:
    """(the literal that `number` comes from, the calls that made its loader), each None where it is
    not known.
    """
    if not isinstance(number, Number):
        return None, None
    return number.literal, list(number.calls) if number.calls is not None else None
