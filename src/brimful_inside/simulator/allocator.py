"""PyTorch's CUDA caching allocator as arithmetic: the same segments, splits and merges, without any memory.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.6 to 2.13):

- a request is rounded up to 512 bytes; up to 1 MiB it comes from the small pool (segments of 2 MiB), else from the large
  one (segments of 20 MiB for requests under 10 MiB, else the request rounded up to 2 MiB);
- the smallest free block that is large enough is taken, at the lowest address; it is split when the rest is worth keeping
  (512 bytes in the small pool, more than 1 MiB in the large one); free neighbours merge;
- a full card makes it give back oversize blocks, then every segment that is wholly free, before it gives up.

A block that another stream uses (`record_stream`) is retired first and ready later: when the other stream's event is done
is for the caller to say, as a card's clock is not here.

Private pools (private_pools.py) are served apart from all others; a request of theirs that finds the card full has nothing
given back for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Dict, List, Optional

from brimful_inside.simulator import expandable, reclaim
from brimful_inside.simulator.allocator_settings import (
    DEFAULT_SETTINGS,
    AllocatorSettings,
    changed,
    settings_from,
    settings_in,
)
from brimful_inside.simulator.allocator_stats import Counts, Gauge, flat_statistics
from brimful_inside.simulator.blocks import (
    Block,
    Pool,
    Segment,
    merge,
    segment_from,
)
from brimful_inside.simulator.private_pools import PrivatePools

__all__ = ["AllocatorSettings", "CachingAllocator", "CardFull", "rounded_size", "segment_size", "settings_from", "settings_in"]

MIB = 1 << 20
MIN_BLOCK = 512  # kMinBlockSize
SMALL_SIZE = MIB  # kSmallSize
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
MIN_LARGE = 10 * MIB  # kMinLargeAlloc
ROUND_LARGE = 2 * MIB  # kRoundLarge
NO_LIMIT = 1 << 62
FIRST_ADDRESS = 0x7F0000000000  # of the imaginary address space; 0 stays the address of nothing


class CardFull(Exception):
    """There is no room. All numbers are bytes; `free`, `capacity` and `reserved` count whole segments."""

    def __init__(self, requested: int, segment: int, free: int, capacity: int, allocated: int, reserved: int, private: int = 0):
        super().__init__("no room for %d bytes: %d of %d are free" % (requested, free, capacity))
        self.requested = requested  # as asked for
        self.segment = segment  # what was wanted of the card: the size that PyTorch's message names
        self.free = free
        self.capacity = capacity
        self.allocated = allocated
        self.reserved = reserved
        self.private = private  # free blocks of private pools: PyTorch counts them with what is allocated


def rounded_size(nbytes: int, settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
    """The bytes of a block that serves a request of `nbytes` (round_size)."""
    if nbytes < MIN_BLOCK:
        return MIN_BLOCK
    interval = min(max(nbytes.bit_length() - 21, 0), len(settings.roundup_power2_divisions) - 1)
    divisions = settings.roundup_power2_divisions[interval]
    if divisions > 1 and nbytes > MIN_BLOCK * divisions:
        step = (1 << (nbytes.bit_length() - 1)) // divisions
        return -(-nbytes // step) * step
    if divisions == 1 and nbytes > MIN_BLOCK:
        return nbytes  # roundup_power2_next_division leaves it as it is, not even a multiple of 512
    return -(-nbytes // MIN_BLOCK) * MIN_BLOCK


def segment_size(size: int, settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
    """The bytes asked of the card for a block of `size` that no free block can serve (get_allocation_size)."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return settings.large_segment
    return -(-size // ROUND_LARGE) * ROUND_LARGE


class CachingAllocator:
    """Hands out addresses and keeps PyTorch's books. Every number is in bytes.

    `capacity_bytes` is what the card has for segments (its memory without the context); None is without limit.
    `total_bytes` is what a memory fraction refers to (the whole card); it defaults to the capacity. Without `detailed`,
    the counts by pool and of split blocks are not kept, and `memory_stats` is not to be had: a third quicker.
    Raises NotImplementedError for ``backend:cudaMallocAsync``, whose rules are the driver's.
    """

    def __init__(
        self,
        capacity_bytes: Optional[int] = None,
        settings: AllocatorSettings = DEFAULT_SETTINGS,
        total_bytes: Optional[int] = None,
        detailed: bool = True,
    ):
        if not settings.native:
            raise NotImplementedError("the allocator backend cudaMallocAsync is not modelled")
        self.capacity_bytes = capacity_bytes
        self.settings = settings
        self.counts = Counts()
        self._detailed = detailed
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.num_device_alloc = self.num_device_free = 0
        self.oversize_allocations, self.oversize_segments = Gauge(), Gauge()
        self.allowed_bytes: Optional[int] = None
        self.small = Pool(True, MIN_BLOCK, NO_LIMIT)
        self.large = Pool(False, MIB + 1, NO_LIMIT)
        self.private_pools = PrivatePools(self.small, self.large)
        self.next_address = FIRST_ADDRESS
        self._live: Dict[int, Block] = {}
        self._retired: Dict[int, Block] = {}
        self._total_bytes = total_bytes if total_bytes is not None else capacity_bytes
        self._obey(settings)

    allocated = property(lambda self: self.counts.allocated, doc="Live blocks, as rounded.")
    peak_allocated = property(lambda self: self.counts.peak_allocated)
    reserved = property(lambda self: self.counts.reserved, doc="Segments held, in use or cached.")
    peak_reserved = property(lambda self: self.counts.peak_reserved)
    requested = property(lambda self: self.counts.requested, doc="Live blocks, as asked for.")
    peak_requested = property(lambda self: self.counts.peak_requested)

    def change_settings(self, text: str) -> None:
        """torch.cuda.memory._set_allocator_settings: what `text` names has its values from now on.

        Raises ValueError as `settings_from` does, and NotImplementedError for another backend.
        """
        settings = changed(self.settings, text)
        if not settings.native:
            raise NotImplementedError("the allocator backend cudaMallocAsync is not modelled")
        self._obey(settings)

    def _obey(self, settings: AllocatorSettings) -> None:
        self.settings = settings
        max_split = settings.max_split_size if settings.max_split_size is not None else NO_LIMIT
        grows = settings.expandable_segments
        self.oversize = max_split
        self.large.min_rest = MIN_BLOCK if grows else MIB + 1
        self.large.max_split = NO_LIMIT if grows else max_split
        self._rounds_plainly = not settings.rounds_to_divisions
        self._best_fit_always_serves = (
            settings.max_split_size is None and not grows and not settings.garbage_collection_threshold
        )
        if settings.memory_fraction is not None:
            self.set_memory_fraction(settings.memory_fraction, self._total_bytes)

    def set_memory_fraction(self, fraction: float, total_bytes: Optional[int]) -> None:
        """torch.cuda.set_per_process_memory_fraction: `reserved` may not pass this share of `total_bytes`."""
        self.allowed_bytes = None if total_bytes is None else int(fraction * total_bytes)

    def malloc(self, nbytes: int, stream: int = 0, private: int = 0) -> int:
        """The address of a block for `nbytes`; 0 for no bytes at all, to which PyTorch gives no memory.

        `private` is the number of the private pool that serves the request; 0: the general ones do.

        Raises CardFull. Everything is then as before, except that cached segments were given back.
        """
        if nbytes <= 0:
            if nbytes < 0:
                raise ValueError("a request of %d bytes" % nbytes)
            return 0
        size = (nbytes + 511) & -512 if self._rounds_plainly else rounded_size(nbytes, self.settings)
        if private:
            pool = self.private_pools.pool(private, size <= SMALL_SIZE)
        else:
            pool = self.small if size <= SMALL_SIZE else self.large
        block = self._cached(pool, size, stream)
        if block is None:
            block = self._from_card(pool, size, stream, nbytes)
        before, after = block.before, block.after
        rest = block.size - size
        if rest >= pool.min_rest and size < pool.max_split:
            self._split(block, size, rest)
        else:
            size = block.size
            if self._detailed and (after is not None or before is not None) and block.segment is None:
                self._change_splits(pool, -1, -size)
        block.used = True
        block.requested = nbytes
        self._live[block.address] = block
        if size >= self.oversize:
            self.oversize_allocations.gain()
        self.counts.give_out(size, nbytes)
        if self._detailed:
            pool.counts.give_out(size, nbytes)
            if self._retired:
                self.counts.note_active()
                pool.counts.note_active()
        return block.address

    def free(self, address: int) -> None:
        """The block at `address` (an answer of `malloc`) is used no more. Raises KeyError if there is none."""
        if address == 0:
            return
        block = self._live.pop(address)
        self.counts.take_back(block.size, block.requested)
        if self._detailed:
            block.pool.counts.take_back(block.size, block.requested)
        if block.size >= self.oversize:
            self.oversize_allocations.lose()
        self._to_pool(block)

    def retire(self, address: int) -> None:
        """The block at `address` is allocated no more, but waits for another stream before it can be used again."""
        if address == 0:
            return
        block = self._retired[address] = self._live.pop(address)
        self.counts.retire(block.size)
        if self._detailed:
            block.pool.counts.retire(block.size)
        if block.size >= self.oversize:
            self.oversize_allocations.lose()

    def ready(self, address: int) -> None:
        """Nobody uses the retired block at `address` any more. Does nothing where a full card has waited for it already."""
        block = self._retired.pop(address, None)
        if block is None:
            return
        self.counts.ready(block.size, block.requested)
        if self._detailed:
            block.pool.counts.ready(block.size, block.requested)
        self._to_pool(block)

    def wait_for_retired(self) -> None:
        """The host waits for every stream: all retired blocks return to their pools (synchronize_and_free_events)."""
        for address in list(self._retired):
            self.ready(address)

    def _to_pool(self, block: Block) -> None:
        """`block` is free: it merges with its neighbours and goes into its pool (free_block)."""
        pool = block.pool
        block.used = False
        blocks = merged = 0
        for other in (block.before, block.after):
            if other is not None and not other.used:
                bytes_merged = merge(block, other)
                if bytes_merged:
                    blocks -= 1
                    merged += bytes_merged
        if self._best_fit_always_serves:
            insort(pool.free[block.stream], (block.size, block.address, block))
        else:
            pool.put(block)
        if self._detailed and block.segment is None:
            if block.before is not None or block.after is not None:
                self._change_splits(pool, blocks + 1, block.size - merged)
            elif merged:
                self._change_splits(pool, blocks, -merged)

    def empty_cache(self) -> None:
        """Give back every segment that is wholly free (torch.cuda.empty_cache)."""
        reclaim.release_cached(self)

    def release_pool(self, number: int) -> None:
        """No graph of private pool `number` is left: its free segments go when the cache is emptied or the card is full."""
        self.private_pools.release(number)

    def empty_pool(self, number: int) -> None:
        """Give back every free segment of private pool `number` (the end of a torch.cuda.MemPool)."""
        for pool in self.private_pools.pair(number):
            reclaim.release_free(self, pool)

    def reset_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats: the peaks are what is held now."""
        for counts in (self.counts, self.small.counts, self.large.counts, self.oversize_allocations, self.oversize_segments):
            counts.reset_peaks()

    def memory_stats(self) -> Dict[str, int]:
        """What torch.cuda.memory_stats() would show, by its flat keys. Raises RuntimeError without `detailed`."""
        if not self._detailed:
            raise RuntimeError("this allocator keeps no detailed counts")
        stats = flat_statistics({"all": self.counts, "large_pool": self.large.counts, "small_pool": self.small.counts})
        for name in ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free", "num_sync_all_streams"):
            stats[name] = getattr(self, name)
        stats.update(self.oversize_allocations.flat("oversize_allocations"))
        stats.update(self.oversize_segments.flat("oversize_segments"))
        stats["max_split_size"] = self.settings.max_split_size if self.settings.max_split_size is not None else -1
        return dict(sorted(stats.items()))

    def segments(self) -> List[Segment]:
        """Every segment with the blocks that tile it, by address (torch.cuda.memory_snapshot)."""
        blocks = [*self._live.values(), *self._retired.values(), *self.small.free_blocks(), *self.large.free_blocks()]
        blocks += self.private_pools.free_blocks()
        heads = [block for block in blocks if block.before is None or not block.before.mapped]
        return sorted(segment_from(head) for head in heads)

    def _cached(self, pool: Pool, size: int, stream: int) -> Optional[Block]:
        """The best fitting free block, taken out of its list; None if there is none (get_free_block)."""
        try:
            free = pool.free[stream]
        except KeyError:
            free = pool.free[stream] = []
        at = bisect_left(free, (size,))
        if self._best_fit_always_serves:
            return free.pop(at)[2] if at < len(free) else None
        pool.searches += 1
        if at < len(free) and self.settings.expandable_segments:
            at = expandable.best_fit(free, at)
        limit = self.settings.max_split_size
        if at == len(free):
            return None
        if limit is not None:
            found = free[at][0]
            if size < limit <= found or (size >= limit and found >= size + self.settings.max_non_split_rounding):
                return None
        return free.pop(at)[2]

    def _from_card(self, pool: Pool, size: int, stream: int, nbytes: int) -> Block:
        """A block of new memory, after giving cached memory back if need be. Raises CardFull."""
        if self.allowed_bytes is not None and self.settings.garbage_collection_threshold:
            reclaim.collect_garbage(self, int(self.settings.garbage_collection_threshold * self.allowed_bytes))
        block = self._new_segment(pool, size, stream)
        if block is None and reclaim.release_oversize(self, pool, size, stream):
            block = self._new_segment(pool, size, stream)
        if block is None and not pool.owner:  # what is cached is not given back during a capture
            reclaim.release_cached(self)
            self.num_alloc_retries += 1
            block = self._new_segment(pool, size, stream)
        if block is None:
            self.num_ooms += 1
            capacity = min(n for n in (self.capacity_bytes, self.allowed_bytes) if n is not None)
            wanted = segment_size(size, self.settings)
            private = sum(free.size for free in self.private_pools.free_blocks())
            raise CardFull(nbytes, wanted, capacity - self.reserved, capacity, self.allocated, self.reserved, private)
        return block

    def _new_segment(self, pool: Pool, size: int, stream: int) -> Optional[Block]:
        """A block of new memory; None if the card has no room for its segment (alloc_block)."""
        wanted = segment_size(size, self.settings)
        if self.allowed_bytes is not None and self.reserved + wanted > self.allowed_bytes:
            return None
        if self.settings.expandable_segments:
            return expandable.grow(self, pool, size, stream)
        if not self.has_room(wanted):
            return None
        self.num_device_alloc += 1
        if wanted >= self.oversize:
            self.oversize_segments.gain()
        self.counts.reserve(wanted, 1)
        pool.counts.reserve(wanted, 1)
        return Block(self.new_addresses(wanted), wanted, pool, stream)

    def has_room(self, nbytes: int) -> bool:
        return self.capacity_bytes is None or self.reserved + nbytes <= self.capacity_bytes

    def new_addresses(self, nbytes: int) -> int:
        """Where a new segment lies. Addresses are not used twice, and segments never touch."""
        address = self.next_address
        self.next_address += (-(-nbytes // ROUND_LARGE) + 1) * ROUND_LARGE
        return address

    def _split(self, block: Block, size: int, rest: int) -> None:
        """Cut `block` down to `size`; the rest becomes a free block behind it."""
        pool, after = block.pool, block.after
        was_split = after is not None or block.before is not None
        tail = Block(block.address + size, rest, pool, block.stream, block.segment)
        tail.before, tail.after = block, after
        if after is not None:
            after.before = tail
        block.after = tail
        block.size = size
        pool.put(tail)
        if self._detailed and block.segment is None:
            if was_split:
                self._change_splits(pool, 0, -size)
            else:
                self._change_splits(pool, 1, rest)

    def _change_splits(self, pool: Pool, blocks: int, size: int) -> None:
        self.counts.change_splits(blocks, size)
        pool.counts.change_splits(blocks, size)
