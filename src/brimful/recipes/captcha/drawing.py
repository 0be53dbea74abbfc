"""Draws parts of a data set in several processes. No torch, here and in the processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_sentinels

from brimful.errors import BrimfulError
from brimful.recipes.captcha.images import Key, Painter, texts
from brimful.units import counted

SAY_EVERY_S = 5.0

_painter: Painter | None = None


def draw_parts(
    key: Key, starts: Sequence[int], part: int, processes: int, say: Callable[[str], None]
) -> Iterator[tuple[int, bytes]]:
    """(start, pixels) of each part of `part` images that begins at one of `starts`, as they are finished."""
    if not starts:
        return
    Painter(key.look)  # what is missing (package, font) is reported here, once
    shown = texts(key.seed, key.count, key.look)
    jobs = {start: shown[start : start + part] for start in starts}
    total = sum(map(len, jobs.values()))
    processes = max(1, min(processes, len(jobs)))
    before = f", {key.count - total:,} of them drawn before" if total < key.count else ""
    say(f"Drawing {counted(key.count, 'image')}{before}: once, in {counted(processes, 'process', 'processes')}.")
    begun = shown_at = time.monotonic()
    done = 0
    alone = ((start, draw_part(key, start, parts)) for start, parts in jobs.items())
    for start, pixels in alone if processes == 1 else _several(key, jobs, processes):
        yield start, pixels
        done += len(jobs[start])
        now = time.monotonic()
        if now >= shown_at + SAY_EVERY_S and done < total:
            shown_at = now
            say(f"  {done:,} of {total:,} images drawn, {(now - begun) / done * (total - done):.0f} s left")


def draw_part(key: Key, start: int, shown: list[str]) -> bytes:
    global _painter
    if _painter is None or _painter.look != key.look:
        _painter = Painter(key.look)
    return b"".join(_painter.draw(key.seed, start + index, text).tobytes() for index, text in enumerate(shown))


def _several(key: Key, jobs: dict[int, list[str]], processes: int) -> Iterator[tuple[int, bytes]]:
    """Spawned, not forked: the parent may have threads of torch's."""
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), initializer=_begin)
    left = iter(jobs.items())
    waiting: dict[Future[bytes], int] = {}
    try:
        while True:
            # Two a process are handed out: the rest is cheap to drop when the run is interrupted.
            while len(waiting) < 2 * processes and (job := next(left, None)) is not None:
                waiting[pool.submit(draw_part, key, *job)] = job[0]
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool as error:
        raise BrimfulError(
            "A process that draws images ended before its time.",
            "It was killed, perhaps for memory. What was drawn is kept.",
            "Run the same command again, with --draw-processes 1 if this happens again.",
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin() -> None:
    """Ctrl-C is the parent's to answer; and a child whose parent was killed ends too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for_sentinels([sentinel])
    os._exit(1)
