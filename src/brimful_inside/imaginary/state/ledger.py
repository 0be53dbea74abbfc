"""The ledger of a card: every storage on it, from allocation to free, played into the allocator and
written to the trace.

Reference counting frees a storage, in whatever thread drops the last reference, perhaps while the
ledger is being written. So a free is put in a queue first, and the thread that holds the lock works
the queue off."""

from __future__ import annotations

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
    TextIO,
    Tuple,
)

import torch

from brimful_inside.imaginary.state.errors import out_of_memory
from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.streams import PrivatePools, StreamWork
from brimful_inside.imaginary.state.trace_file import TraceWriter
from brimful_inside.simulator import trace as rows
from brimful_inside.simulator.allocator import CachingAllocator, CardFull, rounded_size
from brimful_inside.simulator.snapshot import History
from brimful_inside.simulator.workspaces import OF_PLANS, bytes_of
from brimful_inside.wire import Card

Block = Tuple[int, int]  # of an allocation: its number in the trace, and its address

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
        self.work = StreamWork()
        self.pools = PrivatePools()
        self.trace = TraceWriter(trace)
        self._stream = stream
        # PyTorch's number to the trace's, by first allocation, so that two runs agree
        self._streams: Dict[int, int] = {0: 0}
        self._lock = threading.Lock()
        self._freed: Deque[_Storage] = deque()
        self.allocations = 0  # so far
        self._open = True

    def add(self, storage: torch.UntypedStorage, op: str, at_most: int = 0) -> None:
        """`storage` is new on the card. `at_most`: so long is a dimension whose length is an upper
        bound (upper_bounds.py: Lengths)."""
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
    def resized(self, entry: _Storage, nbytes: int, op: str) -> None:
        """The storage of `entry` has another size. PyTorch takes the new block first."""
        if entry.ledger is not self:  # of another card
            return entry.ledger.resized(entry, nbytes, op)
        new = self.reserve(nbytes, op) if nbytes else (0, 0)
        with self._lock:
            self._give_back(entry)
        (entry.id, entry.address), entry.nbytes, entry.values = new, nbytes, None
        entry.stream, entry.used_by = self._stream(), None
        self._work_off()

    def release(self, number: int, address: int) -> None:
        with self._lock:
            self._free(number, address)
        self._work_off()

    def release_all(self, blocks: Iterable[Block]) -> None:
        for number, address in blocks:
            self.release(number, address)

    def pass_by(self, sizes: Sequence[int], op: str) -> None:
        """Memory of these sizes is there together, and gone again, also where it has no room."""
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
        self.work.retired = []
        self.trace.forget()

    def phase(self, name: str) -> None:
        self._do(rows.Phase(name), self.allocator.reset_peaks)

    def empty_cache(self) -> None:
        self._do(rows.EmptyCache(), self.allocator.empty_cache)

    def _do(self, row: Any, action: Callable[..., None], *args: Any) -> None:
        """Writes a row of the trace, and does the same with the allocator."""
        with self._lock:
            self._give_back_freed()
            action(*args)
            self.trace.row(row)

    @one_at_a_time
    def divert(self, pool: Any, serves: Callable[[int], bool], captures: bool = False) -> None:
        """From here on the private pool `pool` serves the streams for which `serves` is true
        (beginAllocateToPool), for a capture of what they do where `captures` is set."""
        self.pools.divert(pool, serves, captures)
        if captures:
            self._do(rows.Capture(True), self.allocator.capture, True)

    @one_at_a_time
    def end_divert(self, pool: Any) -> None:
        """The end of `divert`. What the pool gave stays its own (endAllocateToPool)."""
        if self.pools.end_divert(pool):
            self._do(rows.Capture(False), self.allocator.capture, False)

    @one_at_a_time
    def release_pool(self, pool: Any, empty: bool = False) -> None:
        """A private pool has no users any more. With `empty`, its free segments are given back
        now."""
        number = self.pools.release(pool)
        if number is None or not self._open:
            return
        self._do(rows.ReleasePool(number), self.allocator.release_pool, number)
        if empty:
            self._do(rows.EmptyPool(number), self.allocator.empty_pool, number)

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
            self.trace.lines(lines)

    def change_settings(self, text: str) -> None:
        self._do(rows.Settings(text), self.allocator.change_settings, text)

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
            # PyTorch polls at each malloc (process_events)
            for block in () if self.allocator.capturing else self.work.done():
                self.allocator.ready(block[1])
                self.trace.row(rows.Ready(block[0]))
            stream = self._stream()
            pool = self.pools.serving(stream)
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
                self.trace.context(stream, pool)
                self.trace.malloc(number, nbytes, op, formula, args, at_most)
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
        return self.reserve(bytes_of(formula, args), op, formula, args, at_most)

    def _refuse(self, message: str) -> NoReturn:
        if self.on_out_of_memory is not None:
            # Not the exception that is raised: to keep that would keep the frames, and the script's
            # tensors with them.
            self.on_out_of_memory(torch.OutOfMemoryError(message))
        raise torch.OutOfMemoryError(message)

    def _free(self, number: int, address: int) -> None:
        self.allocator.free(address)
        self.trace.lines('["free",%d]\n' % number)

    def _give_back(self, entry: _Storage) -> None:
        """The block of `entry` is not needed any more: free, once other streams that used it are
        done."""
        if entry.id and entry.used_by:
            retired: Any = self.allocator.retire(entry.address)
            self.trace.row(rows.Retire(entry.id))
            # a capture is over before what it recorded is used again: that waits for no stream
            capturing = self.allocator.capturing
            streams = {by for by, captured in entry.used_by.items() if not (captured and capturing)}
            self.work.retire((entry.id, retired), streams)
        elif entry.id:
            self._free(entry.id, entry.address)

    def _on_freed(self, entry: Any) -> None:
        if self._open:
            self._freed.append(entry)
            self._work_off()

    def _work_off(self) -> None:
        """Frees what is in the queue, unless another thread is at it, which will see it too."""
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
