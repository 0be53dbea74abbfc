"""PyTorch's CUDA caching allocator as arithmetic: the same segments, splits and merges, without any
memory.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.6 to 2.15):

- a request is rounded up to 512 bytes; up to 1 MiB it comes from the small pool (segments of 2
  MiB), else from the large one (segments of 20 MiB for requests under 10 MiB, else the request
  rounded up to 2 MiB);
- the smallest free block that is large enough is taken, at the lowest address; it is split when the
  rest is worth keeping (512 bytes in the small pool, more than 1 MiB in the large one); free
  neighbours merge;
- a full card makes it give back oversize blocks, then every segment that is wholly free, before it
  gives up.

A block that another stream uses (`record_stream`) is retired first and ready later: when the other
stream's event is done is for the caller to say, as a card's clock is not here."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Tuple

from brimful_inside.simulator import pools
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, AllocatorSettings, changed
from brimful_inside.simulator.allocator_stats import Statistics
from brimful_inside.simulator.block_counts import BlockCounts, LiveBlock
from brimful_inside.simulator.pools import (
    ADDRESS,
    MIB,
    NO_LIMIT,
    SIZE_AT,
    SMALL_SIZE,
    DeviceMemory,
    Piece,
    Pool,
    Segment,
)

MIN_BLOCK = 512  # kMinBlockSize


@dataclass(eq=False)
class CardFull(Exception):
    """There is no room. All numbers are bytes; `free`, `capacity` and `reserved` count whole
    segments."""

    requested: int  # by the caller
    segment: int  # what was wanted of the card: the size that PyTorch's message names
    free: int
    capacity: int
    allocated: int
    reserved: int
    private: int = 0  # free blocks of private pools: PyTorch counts them with what is allocated

    def __str__(self) -> str:
        return "no room for %d bytes: %d of %d are free" % (
            self.requested,
            self.free,
            self.capacity,
        )

    @classmethod
    def on(cls, allocator: CachingAllocator, nbytes: int, segment: int) -> CardFull:
        memory, private = allocator.memory, allocator.pools.every_private()
        limits = memory.capacity_bytes, memory.allowed_bytes
        capacity = min(limit for limit in limits if limit is not None)
        return cls(
            nbytes,
            segment,
            capacity - memory.reserved,
            capacity,
            allocator.allocated,
            memory.reserved,
            sum(block[1] for pool in private for block in pool.free_blocks()),
        )

    def of(self, capacity: int) -> CardFull:
        return replace(self, capacity=capacity, free=capacity - self.reserved)


def rounded_size(nbytes: int, settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
    """The bytes of a block that serves a request of `nbytes` (round_size)."""
    if nbytes < MIN_BLOCK:
        return MIN_BLOCK
    interval = min(max(nbytes.bit_length() - 21, 0), len(settings.roundup_power2_divisions) - 1)
    divisions = settings.roundup_power2_divisions[interval]
    if divisions > 1 and nbytes > MIN_BLOCK * divisions:
        step = (1 << (nbytes.bit_length() - 1)) // divisions
        return -(-nbytes // step) * step
    return -(-nbytes // MIN_BLOCK) * MIN_BLOCK


# A block that waits for another stream, and its address: that alone would not tell it from one that
# was retired at the same address later.
Retired = Tuple[int, LiveBlock]


class CachingAllocator:
    """Hands out addresses and counts as PyTorch does. Every number is in bytes. `capacity_bytes` is
    what the card has for segments (its memory without the context); None is without limit.
    `total_bytes` is what a memory fraction and the addresses of expandable segments refer to (the
    whole card); it defaults to the capacity. Without `detailed`, the counts by pool and of
    split blocks are not kept, `memory_stats` raises and `memory.watch` is told of segments alone: a
    replay takes half the time. `placement`: of new segments (`pools.BELOW`). Raises
    NotImplementedError for ``backend:cudaMallocAsync``, whose rules are the driver's."""

    def __init__(
        self,
        capacity_bytes: Optional[int] = None,
        settings: AllocatorSettings = DEFAULT_SETTINGS,
        total_bytes: Optional[int] = None,
        detailed: bool = True,
        placement: int = pools.BELOW,
    ):
        self.allocated = self.peak_allocated = 0  # live blocks, as rounded
        self.num_alloc_retries = self.num_ooms = self.num_sync_all_streams = 0
        self.segments_freed = 0  # since there was no room for another
        self._statistics = Statistics() if detailed else None
        self.memory = DeviceMemory(capacity_bytes, self._statistics, placement)
        self._counts = BlockCounts(self.memory, self._statistics) if self._statistics else None
        self.pools = pools.Pools(MIN_BLOCK)
        self._small, self._large = self.pools.small, self.pools.large
        self.capturing = 0  # captures of graphs under way
        self._live: Dict[int, LiveBlock] = {}
        self._retired: Dict[int, LiveBlock] = {}
        self.memory.total_bytes = total_bytes if total_bytes is not None else capacity_bytes
        self._grew = False  # expandable segments were ever on
        self._apply(settings)

    def insert(self, capacity_bytes: Optional[int], total_bytes: int) -> None:
        """The card is another one from now on. Not once it was used."""
        self.memory.capacity_bytes, self.memory.total_bytes = capacity_bytes, total_bytes
        self._apply(self.settings)

    reserved = property(lambda self: self.memory.reserved, doc="Segments held, in use or cached.")
    peak_reserved = property(lambda self: self.memory.peak_reserved)

    def change_settings(self, text: str) -> None:
        """torch.cuda.memory._set_allocator_settings: what `text` names has its values from now on.
        Raises ValueError as `settings_from` does, and NotImplementedError for another backend."""
        self._apply(changed(self.settings, text))

    def _apply(self, settings: AllocatorSettings) -> None:
        if not settings.native:
            raise NotImplementedError("the allocator backend cudaMallocAsync is not modelled")
        self.settings = settings
        max_split = settings.max_split_size if settings.max_split_size is not None else NO_LIMIT
        grows = settings.expandable_segments
        self.memory.oversize = max_split
        for large in (pool for pool in self.pools.every() if not pool.small):
            large.min_rest = MIN_BLOCK if grows else MIB + 1
            large.max_split = NO_LIMIT if grows else max_split
        self._rounds_plainly = not any(settings.roundup_power2_divisions)
        self._grew = self._grew or grows
        self._best_fit_always_serves = (
            max_split == NO_LIMIT
            and not self._grew
            and not settings.garbage_collection_threshold
            and not self._large.searches  # blocks have ages, which count on where it is set again
        )
        if settings.memory_fraction is not None:
            self.set_memory_fraction(settings.memory_fraction, self.memory.total_bytes)

    def set_memory_fraction(self, fraction: float, total_bytes: Optional[int]) -> None:
        """torch.cuda.set_per_process_memory_fraction: `reserved` may not pass this share of
        `total_bytes`; all of it is no limit, and no reason to collect garbage."""
        self.memory.allowed_bytes = (
            None if total_bytes is None or fraction >= 1.0 else int(fraction * total_bytes)
        )

    def malloc(self, nbytes: int, stream: int = 0, private: int = 0) -> int:
        """The address of a block for `nbytes`; 0 for no bytes at all, to which PyTorch gives no
        memory. `private` is the number of the private pool that serves the request; 0: the general
        ones do. Raises CardFull: everything is then as before, except that cached segments were
        given back."""
        if nbytes <= 0:
            if nbytes < 0:
                raise ValueError("a request of %d bytes" % nbytes)
            return 0
        size = (
            (nbytes + 511) & -512 if self._rounds_plainly else rounded_size(nbytes, self.settings)
        )
        pool = self._small if size <= SMALL_SIZE else self._large
        if private:
            pool = self.pools.private(private, pool)
        free = pool.free.get(stream)
        if free is None:
            free = pool.free[stream] = []
        at = bisect_left(free, size << SIZE_AT)
        if not self._best_fit_always_serves:
            at = pools.allowed_fit(self.memory, pool, free, at, size, self.settings)
        if at < len(free):
            block = free.pop(at)
            address, available = block & ADDRESS, block >> SIZE_AT
            del pool.starts[address]
        else:
            address, available = self._from_card(pool, size, stream, nbytes)
        rest = available - size
        # the rest becomes a free block behind it
        if rest >= pool.min_rest and size < pool.max_split:
            tail = address + size
            pool.starts[tail] = pool.ends[address + available] = block = rest << SIZE_AT | tail
            insort(free, block)
        else:
            size = available
            pool.ends.pop(address + available, None)
        self._live[address] = taken = (size, nbytes, pool, free)
        self.allocated = total = self.allocated + size
        if total > self.peak_allocated:
            self.peak_allocated = total
        if self._counts is not None:
            self._counts.allocated(address, available, taken)
        return address

    def free(self, address: int) -> None:
        """The block at `address` (an answer of `malloc`) is used no more. Raises KeyError if there
        is none."""
        if address == 0:
            return
        block = self._live.pop(address)
        size, _, pool, free = block
        self.allocated -= size
        if self._counts is not None:
            self._counts.ended(address, block)
            self._counts.returns(address, block)
        freed = pool.put(address, size, free)
        if not self._best_fit_always_serves:
            pool.freed_at[freed & ADDRESS] = pool.searches

    def retire(self, address: int) -> Optional[Retired]:
        """The block at `address` is allocated no more, but waits for another stream before it can
        be used again: till `ready` is told what this answers."""
        if address == 0:
            return None
        block = self._retired[address] = self._live.pop(address)
        self.allocated -= block[0]
        if self._counts is not None:
            self._counts.ended(address, block)
        return address, block

    def ready(self, retired: Optional[Retired]) -> None:
        """Nobody uses that block any more. Does nothing where a full card has waited for it
        already."""
        if retired is None or not self.is_retired(retired):
            return
        address, block = retired
        size, _, pool, free = block
        del self._retired[address]
        if self._counts is not None:
            self._counts.returns(address, block)
        pool.freed_at[pool.put(address, size, free) & ADDRESS] = pool.searches

    def size_of(self, address: int) -> int:
        """The size of the live block at `address`; 0 for address 0."""
        return self._live[address][0] if address else 0

    def state(self) -> Tuple[int, List[Tuple[int, int]], int]:
        """What decides about all that is allocated from now on: of equal states the same follows
        from the same requests."""
        live = [(address, block[0]) for address, block in self._live.items()]
        return self.memory.reserved, live, len(self._retired)

    def kept_bytes(self) -> int:
        """Bytes of the live blocks, without what of a block could not be split off: the same for
        the same tensors."""
        return sum(-(-nbytes // MIN_BLOCK) * MIN_BLOCK for _, nbytes, _, _ in self._live.values())

    def is_retired(self, retired: Retired) -> bool:
        return self._retired.get(retired[0]) is retired[1]

    def empty_cache(self) -> None:
        """Give back every segment that is wholly free (torch.cuda.empty_cache,
        release_cached_blocks). The host waits for every stream first. Those of a private pool are
        given back only after its last graph is gone, and during a capture no others."""
        emptied = []
        if not self.capturing:
            self.num_sync_all_streams += 1
            for retired in list(self._retired.items()):
                self.ready(retired)
            emptied = [self._large, self._small]
        for pool in (*emptied, *self.pools.released()):
            pools.release_free(self.memory, pool)

    def capture(self, begins: bool) -> None:
        """The capture of a graph begins or ends. While one lasts, a full card gives nothing back
        but oversize blocks (since PyTorch 2.13 not so in a torch.cuda.MemPool outside of it)."""
        self.capturing += 1 if begins else -1

    def release_pool(self, number: int) -> None:
        """No graph of private pool `number` is left: its free segments go when the cache is emptied
        or the card is full."""
        self.pools.release(number)

    def empty_pool(self, number: int) -> None:
        """Give back every free segment of private pool `number` (the end of a torch.cuda.MemPool).
        The host waits for the streams that use its blocks first."""
        for retired in list(self._retired.items()):
            if retired[1][2].owner == number:
                self.ready(retired)
        for pool in self.pools.halves(number):
            pools.release_free(self.memory, pool)

    def reset_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats: the peaks are what is held now."""
        self.peak_allocated, self.memory.peak_reserved = self.allocated, self.memory.reserved
        if self._statistics is not None:
            self._statistics.reset_peaks()

    def memory_stats(self) -> Dict[str, int]:
        """What torch.cuda.memory_stats() would show, by its flat keys. Raises RuntimeError without
        `detailed`."""
        if self._statistics is None:
            raise RuntimeError("this allocator keeps no detailed counts")
        max_split = self.settings.max_split_size
        numbers = {
            **self._statistics.flat(),
            "num_alloc_retries": self.num_alloc_retries,
            "num_ooms": self.num_ooms,
            "num_sync_all_streams": self.num_sync_all_streams,
            "num_device_alloc": self.memory.num_allocs,
            "num_device_free": self.memory.num_frees,
            "max_split_size": -1 if max_split is None else max_split,
        }
        return dict(sorted(numbers.items()))

    def segments(self) -> List[Segment]:
        """Every segment with the blocks that tile it, by address (torch.cuda.memory_snapshot)."""
        used = {
            address: Piece(address, block[0], True, block[1], address in self._retired)
            for address, block in [*self._live.items(), *self._retired.items()]
        }
        every = self.pools.every()
        return sorted(segment for pool in every for segment in pools.segments_of(pool, used))

    def _from_card(self, pool: Pool, size: int, stream: int, nbytes: int) -> Tuple[int, int]:
        """Address and size of new memory, after giving cached memory back if need be. Raises
        CardFull."""
        settings, memory = self.settings, self.memory
        pools.collect_garbage(memory, self._large, settings)
        block = pools.new_memory(memory, pool, size, stream, settings)
        freed = memory.segments_freed
        if block is None and pools.release_oversize(memory, pool, size, stream, settings):
            block = pools.new_memory(memory, pool, size, stream, settings)
        if block is None and not self.capturing:
            self.empty_cache()
            self.num_alloc_retries += 1
            block = pools.new_memory(memory, pool, size, stream, settings)
        self.segments_freed += memory.segments_freed - freed
        if block is None:
            self.num_ooms += 1
            raise CardFull.on(self, nbytes, pools.segment_size(size, settings))
        return block
