"""Worker processes of a recipe: for what Python computes slowly (RDKit, drawing). No torch, here
and in the processes.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_sentinels
from typing import TypeVar

from brimful.errors import BrimfulError

CHUNK = 128  # items that go to a worker at once
# below so many items a spawned process costs more than it gives: 0.5 s, and an item some 0.3 ms
# (measured)
ALONE = 1500
T = TypeVar("T")
Item = TypeVar("Item")


def mapped(
    function: Callable[[Item], T],
    items: Sequence[Item],
    processes: int,
    *,
    chunk: int = CHUNK,
    alone: int = ALONE,
) -> Iterator[T]:
    """function(item) of each, in order; in this process where there are fewer than `alone`.
    `function` can be pickled. Results that nobody has taken yet wait in memory.

    Raises BrimfulError where a process dies.
    """
    if processes < 2 or len(items) < alone:
        yield from map(function, items)
        return
    spawn = multiprocessing.get_context("spawn")  # not forked: torch has threads
    try:
        with ProcessPoolExecutor(processes, spawn, initializer=begin) as pool:
            yield from pool.map(function, items, chunksize=chunk)
    except BrokenProcessPool as error:
        raise BrimfulError(
            "A worker process ended before its work was done.",
            "It was killed, perhaps for memory. What was finished before is kept.",
            "Run the same command again, with fewer workers if this happens again.",
        ) from error


def begin() -> None:
    """Ctrl-C is the parent's to answer; and a child whose parent was killed ends too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for_sentinels([sentinel])
    os._exit(1)
