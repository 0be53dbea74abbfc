"""The ledger of a card: every storage on it, from allocation to free, played into the allocator and
written to the trace.

Reference counting frees a storage, in whatever thread drops the last reference, perhaps while the
ledger is being written. So a free is put in a queue first, and the thread that holds the lock works
the queue off."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterable,
    List,
    NoReturn,
    Optional,
    Sequence,
    Set,
    TextIO,
    Tuple,
)

import torch

from brimful_inside.imaginary.state.errors import out_of_memory
from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.simulator import trace as rows
from brimful_inside.simulator.allocator import CachingAllocator, CardFull, Retired, rounded_size
from brimful_inside.simulator.snapshot import History
from brimful_inside.simulator.workspaces import OF_PLANS, bytes_of
from brimful_inside.wire import Card

PoolId = Tuple[int, int]  # of a private pool, as PyTorch numbers them
Block = Tuple[int, int]  # of an allocation: its number in the trace, and its address

# How many kernels the host may be ahead of the card: beyond some thousand the driver's launch queue
# is full and launching waits. 1024 is what people see; NVIDIA documents no figure (assumed).
RUN_AHEAD = 1024
ONE_EXBIBYTE = 1 << 60  # NativeCachingAllocator::allocate
# Of the table of storages: a card takes out an entry while another one may put in the next of the
# same address. Frees take no other lock, so that this is one of its own.
_TABLE = threading.RLock()


class _Storage(weakref.ref):
    """The ledger's entry of a storage that is alive; the callback of the reference reports its
    free."""

    __slots__ = (
        "address",
        "at_most",
        "id",
        "key",
        "known_true",
        "ledger",
        "most",
        "nbytes",
        "op",
        "stream",
        "used_by",
        "values",
        "values_period",
        "values_since",
    )


class Ledger:
    """The card's memory. Raises torch.OutOfMemoryError from `add`, `resized` and `reserve` when the
    card is full."""

    def __init__(
        self,
        allocator: CachingAllocator,
        card: Card,
        trace: Optional[TextIO],
        stream: Callable[[], int],
        index: int,
        storages: Dict[int, _Storage],
    ):
        """`stream` is the current one; `index`: of the card, as in cuda:1; `storages`: the table of
        all cards together."""
        self.allocator = allocator
        self.card = card
        self.on_out_of_memory: Optional[Callable[[torch.OutOfMemoryError], None]] = None
        # the script's own: (card, bytes wanted of it, bytes of it, bytes free)
        self.observers: List[Callable[[int, int, int, int], Any]] = []
        self.history: Optional[History] = None  # while the script records one
        self.index = index
        self.storages = storages  # by StorageImpl's address
        self.launches = 0  # kernels so far
        # those that the host has waited for, by stream; None: by all streams
        self._reached: Dict[Optional[int], int] = {}
        # streams that wait for others: (which, launches by then, for whom, its first so many)
        self._joins: Deque[Tuple[int, int, int, int]] = deque(maxlen=RUN_AHEAD)
        self._stream = stream
        # PyTorch's number to the trace's, by first allocation, so that two runs agree
        self._streams: Dict[int, int] = {0: 0}
        self._last_stream = 0  # of the trace's row before
        # private pools in use: id, which streams they serve, and whether a graph is captured
        self._diverted: List[Tuple[Any, Callable[[int], bool], bool]] = []
        self._pools: Dict[Any, int] = {}  # PyTorch's id to the trace's number
        self._pool_numbers, self._last_pool = itertools.count(1), 0
        # number, block, streams, launches when it was retired
        self._waiting: List[Tuple[int, Retired, Set[int], int]] = []
        self._trace = trace
        # who allocates (attribution.annotations.CallSites), where the trace is to say it
        self.call_sites: Any = None
        # of the card, by first allocation, so that its trace does not depend on other threads
        self._sites: Dict[Any, int] = {}
        self._site = -1  # of the trace's malloc before
        self._lock = threading.Lock()
        self._freed: Deque[_Storage] = deque()
        self.allocations = 0  # so far
        self._open = True

    def add(self, storage: torch.UntypedStorage, op: str, at_most: int = 0) -> None:
        """`storage` is new on the card. `at_most`: so long is a dimension whose length is an upper
        bound (known_values.py: Lengths)."""
        nbytes = storage.nbytes()
        entry = _Storage(storage, self._on_freed)
        entry.key, entry.ledger, entry.nbytes = storage._cdata, self, nbytes
        entry.op = op
        # what is known of its elements, and its numbers (device.py, known_values.py)
        entry.known_true, entry.most = False, None
        entry.values, entry.values_period, entry.values_since = None, 0, 0.0
        entry.stream, entry.used_by = self._stream(), None
        entry.at_most, is_most = at_most, at_most > 0
        entry.id, entry.address = self.reserve(nbytes, op, at_most=is_most) if nbytes else (0, 0)
        with _TABLE:
            self.storages[entry.key] = entry

    @one_at_a_time
    def record_stream(self, storage: torch.UntypedStorage, stream: int) -> None:
        """`stream` uses the storage as well: its freed block waits for what that stream was given
        till then."""
        entry = self.storages.get(storage._cdata)
        if entry is not None and stream != entry.stream:  # the entry goes to its own card's ledger
            used_by = entry.used_by or {}
            captured = used_by.get(stream, False) or self.allocator.capturing > 0
            entry.used_by = {**used_by, stream: captured}

    @one_at_a_time
    def synchronized(self, stream: Optional[int] = None, launches: Optional[int] = None) -> None:
        """The host has waited for `stream` (None: for the card), or for its first so many
        `launches`, and with it for what that stream had waited for."""
        reached = {stream: self.launches if launches is None else launches}
        for waiting, at, other, first in reversed(self._joins):
            if at < reached.get(waiting, -1):
                reached[other] = max(reached.get(other, -1), first)
        for by, first in reached.items():
            self._reached[by] = max(self._reached.get(by, -1), first)
        for _, _, streams, retired_at in self._waiting:
            if stream is None:
                streams.clear()
            streams.difference_update(by for by in reached if retired_at <= reached[by])

    @one_at_a_time
    def joined(self, stream: int, other: int, launches: int) -> None:
        """What `stream` is given from now on runs after the first so many `launches` of `other`."""
        if stream != other:
            self._joins.append((stream, self.launches, other, launches))

    def has_reached(self, stream: int, launches: int) -> bool:
        """Whether the host has waited for the first so many `launches` of `stream`, or could not
        have launched what came since otherwise."""
        known = max(self._reached.get(by, -1) for by in (stream, None))
        return launches <= known or self.launches - launches >= RUN_AHEAD

    @one_at_a_time
    def resized(self, entry: _Storage, nbytes: int, op: str) -> None:
        """The storage of `entry` has another size now. PyTorch takes the new block before it gives
        the old one back."""
        if entry.ledger is not self:  # of another card
            return entry.ledger.resized(entry, nbytes, op)
        new = self.reserve(nbytes, op) if nbytes else (0, 0)
        with self._lock:
            self._give_back(entry)
        (entry.id, entry.address), entry.nbytes, entry.values = new, nbytes, None
        entry.stream, entry.used_by = self._stream(), None
        self._work_off()

    def release(self, number: int, address: int) -> None:
        """The end of what `reserve` gave."""
        with self._lock:
            self._free(number, address)
        self._work_off()

    def release_all(self, blocks: Iterable[Block]) -> None:
        for number, address in blocks:
            self.release(number, address)

    def pass_by(self, sizes: Sequence[int], op: str) -> None:
        """Memory of these sizes is there together, and gone again; also where there is not room for
        all of it."""
        held: List[Block] = []
        try:
            for nbytes in filter(None, sizes):
                held.append(self.reserve(nbytes, op))
        finally:
            self.release_all(held)

    def forget(self) -> None:
        """The imaginary card is gone: later frees are not written."""
        self._open = False
        self.storages.clear()
        self._waiting = []
        self._trace = None

    def phase(self, name: str) -> None:
        self._do(rows.Phase(name), self.allocator.reset_peaks)

    def empty_cache(self) -> None:
        self._do(rows.EmptyCache(), self.allocator.empty_cache)

    def _do(self, row: Any, action: Callable[..., None], *args: int) -> None:
        """Writes a row of the trace, and does the same with the allocator."""
        with self._lock:
            self._give_back_freed()
            self._write(rows.encode_row(row) + "\n")
            action(*args)

    @one_at_a_time
    def divert(self, pool: Any, serves: Callable[[int], bool], captures: bool = False) -> None:
        """From here on the private pool `pool` serves the streams for which `serves` is true
        (beginAllocateToPool), for a capture of what they do where `captures` is set."""
        if any(pool == other for other, *_ in self._diverted):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self._diverted.append((pool, serves, captures))
        if captures:
            self._do(rows.Capture(True), self.allocator.capture, True)

    @one_at_a_time
    def end_divert(self, pool: Any) -> None:
        """The end of `divert`. What the pool gave stays its own (endAllocateToPool)."""
        ended = [scope for scope in self._diverted if scope[0] == pool]
        self._diverted = [scope for scope in self._diverted if scope[0] != pool]
        if any(captures for *_, captures in ended):
            self._do(rows.Capture(False), self.allocator.capture, False)

    @one_at_a_time
    def release_pool(self, pool: Any, empty: bool = False) -> None:
        """A private pool has no users any more. With `empty`, its free segments are given back
        now."""
        number = self._pools.pop(pool, None)
        if number is None or not self._open:
            return
        self._do(rows.ReleasePool(number), self.allocator.release_pool, number)
        if empty:
            self._do(rows.EmptyPool(number), self.allocator.empty_pool, number)

    @one_at_a_time
    def pool_number(self, pool: Any) -> int:
        """The trace's number of a private pool, by first use; a pool that was released comes back
        as another one."""
        if pool not in self._pools:
            self._pools[pool] = next(self._pool_numbers)
        return self._pools[pool]

    def pool_id(self, number: int) -> PoolId:
        """PyTorch's id of the private pool that has this number, while it is in use; (0, 0) for the
        general ones."""
        return next((pool for pool, known in self._pools.items() if known == number), (0, number))

    def stream_of(self, number: int) -> int:
        """PyTorch's number of the stream that has this one in the trace."""
        return next(stream for stream, known in self._streams.items() if known == number)

    def note(self, row: Any) -> None:
        """A row of the trace that is no allocation."""
        self.note_lines(rows.encode_row(row) + "\n")

    def note_lines(self, lines: str) -> None:
        """As `note`, for rows that are encoded already."""
        with self._lock:
            self._give_back_freed()
            self._write(lines)

    def change_settings(self, text: str) -> None:
        """The allocator's settings are others from now on. Raises ValueError for what it does not
        know."""
        with self._lock:
            self.allocator.change_settings(text)
            self._write(rows.encode_row(rows.Settings(text)) + "\n")

    def flush(self) -> None:
        if self._trace is not None:
            self._trace.flush()

    def _write(self, line: str) -> None:
        if self._trace is not None:
            self._trace.write(line)

    @one_at_a_time
    def reserve(
        self,
        nbytes: int,
        op: str,
        formula: Optional[str] = None,
        args: Sequence[int] = (),
        at_most: bool = False,
    ) -> Block:
        """Memory for a tensor or a workspace. `release` ends it. `at_most`: `nbytes` is an upper
        bound, since values decide it."""
        if nbytes >= ONE_EXBIBYTE:  # the allocator is not asked, so observers are not told
            self._refuse("CUDA out of memory. Tried to allocate more than 1EB memory.")
        with self._lock:
            self._give_back_freed()
            if self._waiting and not self.allocator.capturing:
                self._process_events()
            stream = self._stream()
            pool = next(
                (
                    self.pool_number(own)
                    for own, serves, _ in self._diverted[::-1]
                    if serves(stream)
                ),
                0,
            )
            stream = self._streams.setdefault(stream, len(self._streams))
            full = None
            try:
                address = self.allocator.malloc(nbytes, stream, pool)
            except CardFull as error:
                address, full = 0, error.with_traceback(None)
                card = self.card
                free = max(0, card.total_bytes - card.context_bytes - full.reserved)
                if self.history is not None:
                    size = rounded_size(nbytes, self.allocator.settings)
                    self.history.note("oom", free, size, size, stream, pool)
            if full is None or formula in OF_PLANS:
                self.allocations = number = self.allocations + 1
                if self._trace is not None:
                    self._write_context(stream, pool)
                    tail = (
                        ""
                        if formula is None
                        else ',"%s",[%s]' % (formula, ",".join(map(str, args)))
                    )
                    self._trace.write('["malloc",%d,%d,"%s"%s]\n' % (number, nbytes, op, tail))
                    if at_most:
                        self._trace.write('["at_most",%d]\n' % number)
                return number, address
        allowed = self.allocator.memory.allowed_bytes
        for observer in tuple(self.observers):
            observer(
                self.index, full.segment, card.total_bytes if allowed is None else allowed, free
            )
        return self._refuse(out_of_memory(full, card, self.index, allowed))

    def reserve_workspace(
        self, formula: str, args: Sequence[int], op: str, at_most: bool = False
    ) -> Block:
        """Memory for a workspace whose size `formula` says (simulator/workspaces.py)."""
        return self.reserve(bytes_of(formula, args), op, formula, args, at_most)

    def _refuse(self, message: str) -> NoReturn:
        if self.on_out_of_memory is not None:
            # Not the exception that is raised: to keep that would keep the frames, and the script's
            # tensors with them.
            self.on_out_of_memory(torch.OutOfMemoryError(message))
        raise torch.OutOfMemoryError(message)

    def _write_context(self, stream: int, pool: int) -> None:
        """What differs from the allocation before: stream, pool and site."""
        if stream != self._last_stream:
            self._last_stream = stream
            self._write(rows.encode_row(rows.Stream(stream)) + "\n")
        if pool != self._last_pool:
            self._last_pool = pool
            self._write(rows.encode_row(rows.Pool(pool)) + "\n")
        if self.call_sites is None:
            return
        number, new = self.call_sites.current(self._sites)
        if new is not None:
            self._write(rows.encode_row(new) + "\n")
        if number != self._site:
            self._site = number
            self._write('["at",%d]\n' % number)

    def _free(self, number: int, address: int) -> None:
        self.allocator.free(address)
        if self._trace is not None:
            self._trace.write('["free",%d]\n' % number)

    def _give_back(self, entry: _Storage) -> None:
        """The block of `entry` is not needed any more: free, once other streams that used it are
        done."""
        if entry.id and entry.used_by:
            retired: Any = self.allocator.retire(entry.address)
            self._write(rows.encode_row(rows.Retire(entry.id)) + "\n")
            # a capture is over before what it recorded is used again: that waits for no stream
            capturing = self.allocator.capturing
            streams = {by for by, captured in entry.used_by.items() if not (captured and capturing)}
            self._waiting.append((entry.id, retired, streams, self.launches))
        elif entry.id:
            self._free(entry.id, entry.address)

    def _process_events(self) -> None:
        """Blocks whose streams are done return to their pools; PyTorch polls at each malloc
        (process_events).

        A card's host runs ahead. So the streams are taken to be done when the host has waited for
        them, or when so much was launched since that the driver's queue would have made it wait:
        the block returns no sooner than on a card."""
        waiting = []
        for block in self._waiting:
            number, retired, streams, retired_at = block
            if streams and self.launches - retired_at < RUN_AHEAD:
                waiting.append(block)
            else:
                self.allocator.ready(retired)
                self._write(rows.encode_row(rows.Ready(number)) + "\n")
        self._waiting = waiting

    def _on_freed(self, entry: Any) -> None:
        if self._open:
            self._freed.append(entry)
            self._work_off()

    def _work_off(self) -> None:
        """Frees what is in the queue, unless another thread is at it: that one will see the new
        ones as well."""
        while self._freed and self._lock.acquire(blocking=False):
            try:
                self._give_back_freed()
            finally:
                self._lock.release()

    def _give_back_freed(self) -> None:
        """What is in the queue, by who holds the lock."""
        while self._freed:
            entry = self._freed.popleft()
            with _TABLE:
                if self.storages.get(entry.key) is entry:
                    del self.storages[entry.key]
            self._give_back(entry)


class LateTrace:
    """Takes lines as a file does, and opens the file with the first allocation: a card that is
    never used leaves none."""

    def __init__(self, open_file: Callable[[], TextIO], header: Callable[[], str]):
        self._open_file, self._header = open_file, header
        self._early: List[str] = []
        self._file: Optional[TextIO] = None

    def write(self, line: str) -> int:
        if self._file is not None:
            return self._file.write(line)
        self._early.append(line)
        if line.startswith('["malloc"'):
            self._file = self._open_file()
            self._file.write(self._header() + "".join(self._early))
        return len(line)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()
