"""Replays of programs on imaginary cards: the quick way where the program and the allocator's settings are plain."""

from __future__ import annotations

from collections.abc import Sequence

from brimful.decide.memory.program import Program
from brimful_inside.simulator.allocator import DEFAULT_SETTINGS, AllocatorSettings, CachingAllocator
from brimful_inside.simulator.plain_replay import PlainCode, has_plain_rules, play_plain
from brimful_inside.simulator.replay import (
    AllocatorUpTo,
    Code,
    Played,
    TooMuch,
    play_code,
)


def play_cards(
    program: Program,
    sizes: Sequence[int],
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    capacity_bytes: int | None = None,
) -> list[Played]:
    """What each card shows of a program whose births take `sizes` bytes; `capacity_bytes`: for segments (None: no limit)."""
    return _play_cards(program, sizes, settings, capacity_bytes, None)


def play_cards_up_to(
    most_reserved: int, program: Program, sizes: Sequence[int], settings: AllocatorSettings, capacity_bytes: int | None
) -> list[Played] | None:
    """As `play_cards`; None where any card reserves more than `most_reserved` bytes, which is mostly seen early on."""
    try:
        return _play_cards(program, sizes, settings, capacity_bytes, most_reserved)
    except TooMuch:
        return None


def _play_cards(
    program: Program, sizes: Sequence[int], settings: AllocatorSettings, capacity_bytes: int | None, most: int | None
) -> list[Played]:
    if len(program.parts) == 1:
        return [_play(program.parts[0][0], program.plain[0], sizes, settings, capacity_bytes, most)]
    known: dict[tuple[int, tuple[int, ...]], Played] = {}
    played, start = [], 0
    for (code, births), plain in zip(program.parts, program.plain, strict=True):
        own = sizes[start : start + births]
        start += births
        key = (id(code), tuple(own))
        if key not in known:
            known[key] = _play(code, plain, own, settings, capacity_bytes, most)
        played.append(known[key])
    return played


def _play(
    code: Sequence[Code],
    plain: PlainCode | None,
    sizes: Sequence[int],
    settings: AllocatorSettings,
    capacity_bytes: int | None,
    most: int | None,
) -> Played:
    if plain is not None and has_plain_rules(settings):
        return play_plain(plain, sizes, settings, capacity_bytes, most)
    if most is not None:
        return play_code(code, sizes, AllocatorUpTo(most, capacity_bytes, settings))
    return play_code(code, sizes, CachingAllocator(capacity_bytes, settings, detailed=False))
