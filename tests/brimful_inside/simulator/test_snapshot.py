"""Snapshots of random programs: their history adds up to what the allocator held, and their
segments are those that it holds."""

import random
from itertools import accumulate, count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import settings_from
from brimful_inside.simulator.replay import replay
from brimful_inside.simulator.snapshot import CardMemory, History, Stack, snapshot_of
from tests.brimful_inside.simulator.random_programs import CONFIGURATIONS, MIB, random_program

GIVEN, TAKEN = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


def recorded(program, settings, whole_blocks=True, capacity=None):
    """(What a replay showed, its allocator, the snapshot at its end.)"""
    allocator, clock, numbers = CachingAllocator(capacity, settings), count(), count()
    history = History(
        lambda: Stack([("train.py", next(numbers), "main")]),
        clock.__next__,
        whole_blocks=whole_blocks,
    )
    allocator.memory.watch = history.note
    replayed = replay(program, program.sizes, allocator)
    return replayed, allocator, snapshot_of([CardMemory(allocator, history)], settings)


def heights(entries, up, down):
    """What there is after each entry."""
    changes = (e["size"] * ((e["action"] in up) - (e["action"] in down)) for e in entries)
    return list(accumulate(changes, initial=0))


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), is_small=st.booleans())
def test_the_history_rises_to_the_peaks_and_ends_at_the_segments(conf, seed, is_small):
    settings, program = settings_from(conf), random_program(random.Random(seed), 150)
    replayed, allocator, snapshot = recorded(
        program, settings, capacity=200 * MIB if is_small else None
    )
    (entries,), segments = snapshot["device_traces"], snapshot["segments"]
    allocated = heights(entries, ("alloc",), ("free_requested",))
    reserved = heights(entries, GIVEN, TAKEN)
    assert (max(allocated), max(reserved)) == replayed.peak
    active = heights(entries, ("alloc",), ("free_completed",))
    blocks = [block for segment in segments for block in segment["blocks"]]
    assert active[-1] == sum(block["size"] for block in blocks if block["state"] != "inactive")
    for height, size, held in (
        (allocated, "allocated_size", allocator.allocated),
        (reserved, "total_size", allocator.reserved),
    ):
        assert height[-1] == sum(segment[size] for segment in segments) == held
    for segment in segments:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_sizes_are_the_bytes_requested_as_pytorch_has_them(seed):
    program = random_program(random.Random(seed), 100)
    _, _, snapshot = recorded(program, settings_from(""), whole_blocks=False)
    sizes = [e["size"] for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
    assert sizes == [size for size in program.sizes if size][: len(sizes)]


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_block_has_the_stack_of_the_allocation_that_it_serves(seed):
    program = random_program(random.Random(seed), 100)
    _, _, snapshot = recorded(program, settings_from(""))
    (entries,) = snapshot["device_traces"]
    newest = {e["addr"]: e["frames"] for e in entries if e["action"] == "alloc"}
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    for block in blocks:
        used = block["state"] != "inactive"
        assert block["frames"] == (newest[block["address"]] if used else [])
    for entry in entries:
        assert bool(entry["frames"]) == (not entry["action"].startswith("segment"))
