import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful_inside.simulator.allocator import CachingAllocator, CardFull, rounded_size
from brimful_inside.simulator.allocator_settings import settings_from
from tests.brimful_inside.simulator.random_programs import CONFIGURATIONS

MIB = 1 << 20
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 2 * MIB),
    st.integers(1, 80 * MIB),
    st.sampled_from([512, 513, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB, 2 * MIB]),
)
# What is done: a request of that many bytes, or (negative) the free of the n-th living block, or
# emptying the cache.
ACTIONS = st.lists(st.one_of(SIZES, st.integers(-40, -1), st.just("empty_cache")), max_size=60)

STATISTICS = (
    "allocated_bytes",
    "reserved_bytes",
    "requested_bytes",
    "inactive_split_bytes",
    "segment",
    "allocation",
)


def check(allocator: CachingAllocator, live: dict[int, int]) -> None:
    """What holds at every moment."""
    segments = allocator.segments()
    for segment in segments:
        at = segment.address
        for piece in segment.pieces:
            assert piece.address == at and piece.size > 0, "the blocks of a segment tile it"
            at += piece.size
        assert at == segment.address + segment.size
        for left, right in zip(segment.pieces, segment.pieces[1:], strict=False):
            assert left.used or right.used, "free neighbours have merged"
    assert sum(s.size for s in segments) == allocator.reserved
    used = {p.address: p.size for s in segments for p in s.pieces if p.used}
    assert used.keys() == live.keys() and sum(used.values()) == allocator.allocated
    for address, nbytes in live.items():
        assert used[address] >= rounded_size(nbytes, allocator.settings)
    stats = allocator.memory_stats()
    current = {name: stats[f"{name}.all.current"] for name in STATISTICS}
    assert (current["allocation"], current["requested_bytes"]) == (len(live), sum(live.values()))
    for statistic, value in current.items():
        by_pool = [stats[f"{statistic}.{pool}.current"] for pool in ("small_pool", "large_pool")]
        assert 0 <= value == sum(by_pool) <= stats[f"{statistic}.all.peak"]
    plain = [s for s in segments if not s.expandable]
    split_free = [p.size for s in plain if len(s.pieces) > 1 for p in s.pieces if not p.used]
    assert current["inactive_split_bytes"] == sum(split_free)
    assert stats["inactive_split.all.current"] == len(split_free)
    assert current["segment"] == len(plain)


def act(
    allocator: CachingAllocator, actions: list, live: dict[int, int], every=lambda: None
) -> None:
    for action in actions:
        if action == "empty_cache":
            allocator.empty_cache()
        elif action > 0:
            with contextlib.suppress(CardFull):
                live[allocator.malloc(action)] = action
        elif live:
            address = list(live)[action % len(live)]
            del live[address]
            allocator.free(address)
        every()


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@given(actions=ACTIONS, capacity=st.sampled_from([None, 64 * MIB, 200 * MIB]))
@settings(max_examples=60, deadline=None)
def test_blocks_tile_their_segments_and_the_books_agree(conf, actions, capacity):
    allocator, live = CachingAllocator(capacity, settings_from(conf)), {}

    def every():
        check(allocator, live)
        assert allocator.peak_reserved >= allocator.reserved >= allocator.allocated >= 0
        assert capacity is None or allocator.peak_reserved <= capacity

    act(allocator, actions, live, every)
    for address in live:
        allocator.free(address)
    allocator.empty_cache()
    assert (allocator.allocated, allocator.reserved) == (0, 0)


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@given(actions=ACTIONS)
@settings(max_examples=40, deadline=None)
def test_a_full_card_leaves_everything_as_it_was_but_the_cache(conf, actions):
    allocator, live = CachingAllocator(100 * MIB, settings_from(conf)), {}
    act(allocator, actions, live)
    before, used = (
        allocator.allocated,
        {p for s in allocator.segments() for p in s.pieces if p.used},
    )
    with pytest.raises(CardFull) as caught:
        allocator.malloc(101 * MIB)
    assert allocator.allocated == before
    assert {p for s in allocator.segments() for p in s.pieces if p.used} == used
    check(allocator, live)
    full = caught.value
    assert full.requested == 101 * MIB <= full.segment
    assert (full.allocated, full.reserved) == (allocator.allocated, allocator.reserved)
    assert full.free == full.capacity - full.reserved
    assert allocator.num_ooms >= 1


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@given(actions=ACTIONS)
@settings(max_examples=20, deadline=None)
def test_without_details_the_memory_is_the_same(conf, actions):
    full, plain = (
        CachingAllocator(150 * MIB, settings_from(conf), detailed=detailed)
        for detailed in (True, False)
    )
    for allocator in (full, plain):
        act(allocator, actions, {})
    assert full.segments() == plain.segments()
    assert (full.peak_allocated, full.peak_reserved) == (plain.peak_allocated, plain.peak_reserved)
    with pytest.raises(RuntimeError, match="no detailed counts"):
        plain.memory_stats()


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@given(actions=ACTIONS)
@settings(max_examples=40, deadline=None)
def test_an_emptied_cache_holds_no_segment_and_no_page_that_is_wholly_free(conf, actions):
    allocator = CachingAllocator(None, settings_from(conf))
    act(allocator, actions, {})
    allocator.empty_cache()
    for segment in allocator.segments():
        page = 2 * MIB if segment.small else allocator.settings.large_segment
        free = [piece.size for piece in segment.pieces if not piece.used]
        assert (
            all(size < 2 * page for size in free)
            if segment.expandable
            else len(free) < len(segment.pieces)
        )


def test_no_bytes_get_no_block():
    allocator = CachingAllocator()
    assert allocator.malloc(0) == 0
    allocator.free(0)
    assert allocator.memory_stats()["allocation.all.allocated"] == 0
    with pytest.raises(ValueError, match="-1"):
        allocator.malloc(-1)


def test_oversize_blocks_are_not_split_and_are_given_back_first():
    allocator = CachingAllocator(100 * MIB, settings_from("max_split_size_mb:30"))
    allocator.free(allocator.malloc(60 * MIB))
    allocator.free(allocator.malloc(24 * MIB))
    allocator.malloc(5 * MIB)  # cut out of the 24, not of the 60
    assert allocator.reserved == 84 * MIB
    allocator.malloc(32 * MIB)  # the 60 may not be cut: too much would be lost
    assert allocator.reserved == 56 * MIB
    assert allocator.num_alloc_retries == 0, "giving back oversize blocks is no retry"
    assert allocator.segments_freed == 1
    allocator.empty_cache()
    assert allocator.segments_freed == 1, "what the script asks for is its own"


def test_a_block_of_an_expandable_segment_hides_larger_ones_that_could_be_given_back():
    allocator, conf = CachingAllocator(200 * MIB), "max_split_size_mb:20,expandable_segments:%s"
    for expandable, size in ((False, 100), (True, 70)):
        allocator.change_settings(conf % expandable)
        allocator.free(allocator.malloc(size * MIB))
    allocator.change_settings(conf % False)
    allocator.malloc(50 * MIB)
    assert allocator.reserved == 50 * MIB, "the cache had to be emptied"


def test_expandable_segments_waste_less_when_sizes_grow():
    plain, grows = (
        CachingAllocator(),
        CachingAllocator(settings=settings_from("expandable_segments:True")),
    )
    for allocator in (plain, grows):
        for size in range(20, 60, 3):
            for address in [allocator.malloc(size * MIB) for _ in range(4)]:
                allocator.free(address)
    assert grows.peak_reserved < plain.peak_reserved
    assert grows.peak_reserved == 20 * MIB * -(-4 * 59 // 20)
    assert grows.memory_stats()["segment.all.allocated"] == 0, "mapped pages are no segments"


def test_expandable_segments_switched_off_serve_nobody_until_they_are_on_again():
    """As PyTorch does: 30 MiB, free, off, and 30 MiB more take a segment of their own."""
    allocator = CachingAllocator(settings=settings_from("expandable_segments:True"))
    allocator.free(allocator.malloc(30 * MIB))
    allocator.change_settings("expandable_segments:False")
    held = allocator.malloc(30 * MIB)
    assert allocator.reserved == (40 + 30) * MIB
    allocator.free(held)
    allocator.change_settings("expandable_segments:True")
    allocator.malloc(30 * MIB)
    assert allocator.reserved == (40 + 30) * MIB


def test_a_memory_fraction_is_the_limit_and_ages_the_cache():
    conf = "per_process_memory_fraction:0.5,garbage_collection_threshold:0.6"
    allocator = CachingAllocator(100 * MIB, settings_from(conf), total_bytes=100 * MIB)
    with pytest.raises(CardFull):
        allocator.malloc(51 * MIB)
    allocator.free(allocator.malloc(30 * MIB))
    for _ in range(3):
        allocator.free(allocator.malloc(2 * MIB))
    assert allocator.reserved == 30 * MIB
    held = allocator.malloc(30 * MIB)
    # 20 MiB more: 50 would be over the limit's 60 %, but nothing is free to collect
    allocator.malloc(2 * MIB)
    assert allocator.reserved == 50 * MIB
    allocator.free(held)
    with pytest.raises(CardFull):
        allocator.malloc(40 * MIB)
    assert allocator.reserved == 20 * MIB


def test_what_is_freed_while_no_garbage_is_collected_is_young_later():
    conf = "garbage_collection_threshold:0.9,per_process_memory_fraction:0.9"
    allocator = CachingAllocator(200 * MIB, settings_from(conf), total_bytes=200 * MIB)
    for address in [allocator.malloc(30 * MIB), allocator.malloc(40 * MIB)]:
        allocator.free(address)
    allocator.malloc(50 * MIB)
    allocator.change_settings("")
    allocator.free(allocator.malloc(30 * MIB))
    allocator.change_settings("garbage_collection_threshold:0.5")
    allocator.malloc(60 * MIB)
    assert allocator.reserved == (30 + 50 + 60) * MIB


def test_an_expandable_segment_has_addresses_for_the_whole_card():
    settings = settings_from("expandable_segments:True")
    allocator = CachingAllocator(101 * MIB, settings, total_bytes=200 * MIB)
    first, second = allocator.malloc(40 * MIB), allocator.malloc(40 * MIB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.malloc(60 * MIB) == second + 40 * MIB


def test_what_is_not_modelled_is_refused():
    with pytest.raises(NotImplementedError, match="cudaMallocAsync"):
        CachingAllocator(settings=settings_from("backend:cudaMallocAsync"))


def test_a_retired_block_is_active_and_not_allocated():
    allocator = CachingAllocator()
    address = allocator.malloc(3 * MIB)
    retired = allocator.retire(address)
    stats = allocator.memory_stats()
    assert (stats["allocated_bytes.all.current"], stats["active_bytes.all.current"]) == (0, 3 * MIB)
    assert (stats["allocation.large_pool.current"], stats["active.large_pool.current"]) == (0, 1)
    assert stats["requested_bytes.all.current"] == 3 * MIB
    other = allocator.malloc(3 * MIB)
    assert other != address and allocator.memory_stats()["active_bytes.all.peak"] == 6 * MIB
    allocator.ready(retired)
    allocator.ready(retired)  # once is enough
    allocator.free(other)
    stats = allocator.memory_stats()
    assert (stats["active_bytes.all.current"], stats["requested_bytes.all.current"]) == (0, 0)
    assert stats["active_bytes.all.allocated"] == stats["active_bytes.all.freed"] == 6 * MIB
    allocator.reset_peaks()
    assert allocator.memory_stats()["active_bytes.all.peak"] == 0
    allocator.retire(allocator.malloc(3 * MIB))
    allocator.empty_cache()
    assert allocator.reserved == 0 and allocator.memory_stats()["active.all.current"] == 0


def test_private_pools_are_in_the_statistics_and_in_the_snapshot():
    allocator = CachingAllocator()
    for request in ((3 * MIB,), (5 * MIB, 0, 2), (100, 1, 2)):
        allocator.malloc(*request)
    stats = allocator.memory_stats()
    assert (stats["segment.large_pool.current"], stats["segment.small_pool.current"]) == (2, 1)
    assert stats["reserved_bytes.all.current"] == 42 * MIB
    assert sorted(
        (segment.pool, segment.stream, segment.small) for segment in allocator.segments()
    ) == [(0, 0, False), (2, 0, False), (2, 1, True)]


def test_a_change_of_settings_holds_in_private_pools_as_well():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(70 * MIB, 0, 1))
    allocator.change_settings("max_split_size_mb:32")
    allocator.malloc(56 * MIB, 0, 1)
    assert allocator.allocated == 70 * MIB, "they are not split any more"


def test_private_pools_of_expandable_segments_are_kept_as_well():
    allocator = CachingAllocator(settings=settings_from("expandable_segments:True"))
    allocator.free(allocator.malloc(50 * MIB, 0, 1))
    allocator.empty_cache()
    assert allocator.reserved == 60 * MIB
    allocator.release_pool(1)
    allocator.empty_cache()
    assert allocator.reserved == 0
