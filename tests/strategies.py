"""Hypothesis strategies for the values of brimful, by their type hints."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass

from hypothesis import strategies as st

from brimful import codec, values
from brimful_inside import wire

# Text without lone surrogates (the wire is UTF-8), numbers within what a computer holds.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
integers = st.integers(-(2**63), 2**63)
st.register_type_strategy(str, texts)
st.register_type_strategy(int, integers)
st.register_type_strategy(float, st.floats(allow_nan=False))

SMALL = 2  # elements of a collection: enough to be plural


def values_of(cls: type) -> st.SearchStrategy:
    """Instances of a dataclass of `values` or `wire`, built from its hints, with short
    collections.
    """
    assert is_dataclass(cls)
    hints = typing.get_type_hints(cls)
    return st.deferred(
        lambda: st.builds(
            cls, **{field.name: _of(hints[field.name]) for field in fields(cls) if field.init}
        )
    )


def _of(hint) -> st.SearchStrategy:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([_of(arg) for arg in args])
    if origin is list:
        return st.lists(_of(args[0]), max_size=SMALL)
    if origin is dict:
        return st.dictionaries(_of(args[0]), _of(args[1]), max_size=SMALL)
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return st.lists(_of(args[0]), max_size=SMALL).map(tuple)
    if origin is tuple:
        return st.tuples(*map(_of, args))
    if hint is typing.Any:
        return st.one_of(st.none(), integers, texts)
    if isinstance(hint, type) and is_dataclass(hint):
        return values_of(hint)
    return st.from_type(hint)


entries = st.one_of([values_of(cls) for cls in codec.ENTRIES.values()])
events = st.one_of([values_of(cls) for cls in wire.EVENTS.values()])
opened = values_of(values.Opened)
