"""The compute capability that a script gets, where a trial speaks for other cards as well
(`Card.others`): what the script decides by it is a choice, which may be another one there. To write
it down is none."""

from __future__ import annotations

from typing import Any, Callable, Tuple


class AskedNumber(int):
    """The major or the minor number."""

    def __new__(cls, machine: Any, place: int) -> Any:
        number: Any = int.__new__(cls, machine.capability[place])
        number._machine, number._plain = machine, lambda capability: capability[place]
        return number

    def __reduce__(self) -> Tuple:
        return int, (int.__add__(self, 0),)

    def __hash__(self) -> int:
        return hash(_decided(self, lambda plain: plain))


class AskedCapability(tuple):
    """(major, minor)."""

    def __new__(cls, machine: Any) -> Any:
        both: Any = tuple.__new__(cls, (AskedNumber(machine, 0), AskedNumber(machine, 1)))
        both._machine, both._plain = machine, lambda capability: capability
        return both

    def __reduce__(self) -> Tuple:
        return tuple, ([int.__add__(number, 0) for number in self],)

    def __hash__(self) -> int:
        return hash(_decided(self, lambda plain: plain))


def _decided(asked: Any, rule: Callable[[Any], Any]) -> Any:
    return asked._machine.choose(lambda capability: rule(asked._plain(capability)))


def _deciding(name: str) -> Callable:
    def decide(asked: Any, *others: Any) -> Any:
        plain = [
            int.__add__(other, 0) if isinstance(other, AskedNumber) else other for other in others
        ]
        return _decided(asked, lambda capability: getattr(capability, name)(*plain))

    return decide


_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
for _name in _COMPARED:
    setattr(AskedCapability, "__%s__" % _name, _deciding("__%s__" % _name))
for _name in (*_COMPARED, "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod", "bool"):
    setattr(AskedNumber, "__%s__" % _name, _deciding("__%s__" % _name))
