"""Python's collector rests while traces are read, and does not look through them after that."""

import gc
import weakref

import pytest

from brimful_inside.simulator.garbage import uncollected


class Cycle:
    def __init__(self):
        self.itself = self


def test_what_was_made_without_collections_is_not_looked_through_when_they_begin_again():
    seen = []

    def see(phase, info):
        seen.append(info["generation"])

    gc.collect()
    with uncollected():
        made = [[number] for number in range(100_000)]
        assert not gc.isenabled()
        gc.callbacks.append(see)
    try:
        assert gc.isenabled() and len(gc.get_objects(generation=2)) > len(made)
        assert not seen
    finally:
        gc.callbacks.remove(see)


def test_garbage_of_that_time_is_found_later():
    with uncollected():
        gone = weakref.ref(Cycle())
    assert gone() is not None
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("was_on", [True, False])
def test_who_had_no_collections_has_none_afterwards_and_what_was_set_aside_stays_so(was_on):
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        (gc.enable if was_on else gc.disable)()
        with uncollected():
            pass
        assert gc.isenabled() is was_on and gc.get_freeze_count() >= frozen * 0.9 > 0
    finally:
        gc.unfreeze()
        gc.enable()
