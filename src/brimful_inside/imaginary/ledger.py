"""The books: every storage on the imaginary card, from birth to death, played into the allocator and written to the trace.

A storage dies by reference counting, in whatever thread drops the last reference, perhaps while the books are being written.
So a death is put in a queue first, and the queue is worked off by whoever holds the lock.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Optional, Sequence, TextIO

import torch

from brimful_inside.imaginary.out_of_memory import out_of_memory
from brimful_inside.laws.allocator import CachingAllocator, CardFull
from brimful_inside.laws.trace import EmptyCache, Phase, Step, encode_row
from brimful_inside.wire import Card

__all__ = ["Ledger"]


class _Storage(weakref.ref):
    """A living storage: the books' entry, and by its callback the news of its death."""

    __slots__ = ("address", "id", "key", "known_true", "nbytes")


class Ledger:
    """The card's memory. Raises torch.OutOfMemoryError from `born`, `resized` and `reserve` when the card is full."""

    def __init__(
        self,
        allocator: CachingAllocator,
        card: Card,
        trace: Optional[TextIO] = None,
        stream: Callable[[], int] = lambda: 0,
    ):
        self.allocator = allocator
        self.card = card
        self.on_out_of_memory: Optional[Callable[[torch.OutOfMemoryError], None]] = None
        self.storages: Dict[int, _Storage] = {}  # by StorageImpl's address
        self._stream = stream
        self._trace = trace
        self._lock = threading.Lock()
        self._dead: Deque[_Storage] = deque()
        self._next_id = 0
        self._open = True

    def born(self, storage: torch.UntypedStorage, op: str) -> None:
        """`storage` is new on the card."""
        nbytes = storage.nbytes()
        entry = _Storage(storage, self._died)
        entry.key = storage._cdata
        entry.nbytes = nbytes
        entry.known_true = False
        entry.id, entry.address = self._malloc(nbytes, op) if nbytes else (0, 0)
        self.storages[entry.key] = entry

    def resized(self, entry: _Storage, nbytes: int, op: str) -> None:
        """The storage of `entry` has another size now. PyTorch takes the new block before it gives the old one back."""
        old_id, old_address, entry.nbytes = entry.id, entry.address, nbytes
        entry.id, entry.address = self._malloc(nbytes, op) if nbytes else (0, 0)
        if old_id:
            self.release(old_id, old_address)

    def reserve(self, nbytes: int, op: str, law: Optional[str] = None, args: Sequence[int] = ()) -> Any:
        """Memory that belongs to no tensor: a workspace. The answer is for `release`."""
        return self._malloc(nbytes, op, law, args)

    def release(self, number: int, address: int) -> None:
        """The end of what `reserve` gave."""
        with self._lock:
            self._free(number, address)
        self._bury()

    def forget(self) -> None:
        """The imaginary card is gone: later deaths are not written."""
        self._open = False
        self.storages.clear()
        self._trace = None

    def phase(self, name: str) -> None:
        self._mark(encode_row(Phase(name)))
        self.allocator.reset_peaks()

    def step(self, number: int) -> None:
        self._mark(encode_row(Step(number)))

    def empty_cache(self) -> None:
        self._mark(encode_row(EmptyCache()))
        with self._lock:
            self.allocator.empty_cache()

    def flush(self) -> None:
        if self._trace is not None:
            self._trace.flush()

    def _mark(self, line: str) -> None:
        self._bury()
        with self._lock:
            self._write(line + "\n")

    def _write(self, line: str) -> None:
        if self._trace is not None:
            self._trace.write(line)

    def _malloc(self, nbytes: int, op: str, law: Optional[str] = None, args: Sequence[int] = ()) -> Any:
        self._bury()
        with self._lock:
            try:
                address = self.allocator.malloc(nbytes, self._stream())
            except CardFull as full:
                message = out_of_memory(full, self.card)
            else:
                self._next_id = number = self._next_id + 1
                if self._trace is not None:
                    tail = "" if law is None else ',"%s",[%s]' % (law, ",".join(map(str, args)))
                    self._trace.write('["malloc",%d,%d,"%s"%s]\n' % (number, nbytes, op, tail))
                return number, address
        if self.on_out_of_memory is not None:
            # Not the exception that is raised: whoever kept that would keep the frames, and the script's tensors with them.
            self.on_out_of_memory(torch.OutOfMemoryError(message))
        raise torch.OutOfMemoryError(message)

    def _free(self, number: int, address: int) -> None:
        self.allocator.free(address)
        if self._trace is not None:
            self._trace.write('["free",%d]\n' % number)

    def _died(self, entry: Any) -> None:
        if self._open:
            self._dead.append(entry)
            self._bury()

    def _bury(self) -> None:
        """Work off the queue of deaths, unless somebody is at it already: he will see the new ones as well."""
        while self._dead and self._lock.acquire(blocking=False):
            try:
                while self._dead:
                    entry = self._dead.popleft()
                    if self.storages.get(entry.key) is entry:
                        del self.storages[entry.key]
                    if entry.id:
                        self._free(entry.id, entry.address)
            finally:
                self._lock.release()
