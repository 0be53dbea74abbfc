"""Python's collector, which rests where millions of small objects are made and none of them can be
garbage yet."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import Iterator


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
