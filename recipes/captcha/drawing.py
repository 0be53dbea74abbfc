"""Draws parts of a data set in several processes. No torch, here and in the processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from brimful.units import counted
from recipes.captcha.images import Key, Painter, texts
from recipes.common.workers import Workers

SAY_EVERY_S = 5.0

_painter: Painter | None = None


def draw_parts(key: Key, part: int, processes: int, say: Callable[[str], None]) -> Iterator[bytes]:
    """The pixels of all images in order, `part` images at a time."""
    Painter(key.look)  # what is missing (package, font) is reported here, once
    shown = texts(key.seed, key.count, key.look)
    jobs = [(start, shown[start : start + part]) for start in range(0, key.count, part)]
    processes = max(1, min(processes, len(jobs)))
    say(
        f"Drawing {counted(key.count, 'image')}: once, in "
        f"{counted(processes, 'process', 'processes')}."
    )
    begun = shown_at = time.monotonic()
    done = 0
    with Workers(processes) as pool:
        for (_, drawn), pixels in zip(
            jobs, pool.map(partial(draw_part, key), jobs, chunk=1, alone=2), strict=True
        ):
            yield pixels
            done += len(drawn)
            now = time.monotonic()
            if now >= shown_at + SAY_EVERY_S and done < key.count:
                shown_at = now
                say(
                    f"  {done:,} of {key.count:,} images drawn, "
                    f"{(now - begun) / done * (key.count - done):.0f} s left"
                )


def draw_part(key: Key, job: tuple[int, list[str]]) -> bytes:
    """The pixels of the texts of one part, which begins at an image's number."""
    global _painter
    start, shown = job
    if _painter is None or _painter.look != key.look:
        _painter = Painter(key.look)
    return b"".join(
        _painter.draw(key.seed, start + index, text).tobytes() for index, text in enumerate(shown)
    )
