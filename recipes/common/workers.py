"""Worker processes of a recipe: for what Python computes slowly (RDKit, drawing). No torch, here
and in the processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing.connection import wait as wait_for_sentinels
from typing import Any, TypeVar

from brimful.errors import BrimfulError

CHUNK = 128  # items that go to a worker at once
# below so many items a spawned process costs more than it gives: 0.5 s, and an item some 0.3 ms
# (measured)
ALONE = 1500
T = TypeVar("T")


class Workers:
    """Some worker processes, started when first needed; a context, at whose end they are ended.

    Spawned, not forked: the parent may have threads of torch's.
    """

    def __init__(self, count: int) -> None:
        self._count, self._pool = count, None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def map(
        self,
        function: Callable[[Any], T],
        items: Iterable[Any],
        *,
        chunk: int = CHUNK,
        alone: int = ALONE,
    ) -> Iterator[T]:
        """function(item) of each, in order; here where there are fewer than `alone`. `function` can
        be pickled.

        Raises BrimfulError where a process dies.
        """
        items = iter(items)
        first = list(islice(items, alone))
        if self._count < 2 or len(first) < alone:
            yield from map(function, first)
            yield from map(function, items)
            return
        items = chain(first, items)
        try:
            waiting: deque[Future[list[T]]] = deque()
            while True:
                # Two a process are handed out: the rest is cheap to drop when the run is
                # interrupted.
                while len(waiting) <= 2 * self._count and (some := list(islice(items, chunk))):
                    waiting.append(self._started().submit(_all, function, some))
                if not waiting:
                    return
                yield from waiting.popleft().result()
        except BrokenProcessPool as error:
            raise BrimfulError(
                "A worker process ended before its time.",
                "It was killed, perhaps for memory. What was finished before is kept.",
                "Run the same command again, with fewer workers if this happens again.",
            ) from error

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._count, multiprocessing.get_context("spawn"), initializer=begin
            )
        return self._pool


def _all(function: Callable[[Any], T], items: list[Any]) -> list[T]:
    return [function(item) for item in items]


def begin() -> None:
    """Ctrl-C is the parent's to answer; and a child whose parent was killed ends too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for_sentinels([sentinel])
    os._exit(1)
