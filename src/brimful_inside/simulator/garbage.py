"""Python's collector, which rests where millions of small objects are made and none of them can be
garbage yet."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator

# Before the card is used, when no cycle holds memory of it: while TRL is imported Python's own 700,
# 10, 10 collect 1,492 times and take 1.5 of 9 s, these 9 times and 0.4 s (measured, two busy cores
# of an AMD EPYC, 2026-11-23).
_SELDOM = 100_000, 50, 1000
_own = gc.get_threshold()


def collect_seldom() -> None:
    gc.set_threshold(*_SELDOM)


def threshold() -> int:
    """So many containers more than were freed start a collection, without `collect_seldom`."""
    now = gc.get_threshold()
    return (_own if now == _SELDOM else now)[0]


@contextmanager
def uncollected() -> Iterator[None]:
    """A context, or decorator, without collections: each would look through all that was made so
    far, two thirds of a trace's decoding."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():
                # To the oldest generation, unseen: the collector would look through all of it now.
                gc.freeze()
                gc.unfreeze()
            gc.enable()
