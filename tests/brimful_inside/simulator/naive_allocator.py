"""The caching allocator's default rules once more, as plainly as they can be written: lists, and no cleverness.

The tests hold the quick one against it.
"""

from __future__ import annotations

MIB = 1 << 20


class NaiveAllocator:
    """A segment is a list of [size, name or None]; None is free."""

    def __init__(self):
        self.segments: list[tuple[bool, list[list]]] = []

    def malloc(self, name: str, nbytes: int) -> None:
        size = 512 * max(1, -(-nbytes // 512))
        small = size <= MIB
        fitting = [
            (block[0], number, place)
            for number, (segment_small, blocks) in enumerate(self.segments)
            for place, block in enumerate(blocks)
            if segment_small == small and block[1] is None and block[0] >= size
        ]
        if fitting:
            _, number, place = min(fitting)
        else:
            whole = 2 * MIB if small else 20 * MIB if size < 10 * MIB else 2 * MIB * -(-size // (2 * MIB))
            self.segments.append((small, [[whole, None]]))
            number, place = len(self.segments) - 1, 0
        blocks = self.segments[number][1]
        rest = blocks[place][0] - size
        if rest >= 512 if small else rest > MIB:
            blocks[place : place + 1] = [[size, name], [rest, None]]
        else:
            blocks[place][1] = name

    def free(self, name: str) -> None:
        for _, blocks in self.segments:
            for block in blocks:
                if block[1] == name:
                    block[1] = None
            place = 0
            while place + 1 < len(blocks):
                if blocks[place][1] is None and blocks[place + 1][1] is None:
                    blocks[place][0] += blocks.pop(place + 1)[0]
                else:
                    place += 1

    def empty_cache(self) -> None:
        self.segments = [s for s in self.segments if any(name is not None for _, name in s[1])]

    @property
    def allocated(self) -> int:
        return sum(size for _, blocks in self.segments for size, name in blocks if name is not None)

    @property
    def reserved(self) -> int:
        return sum(size for _, blocks in self.segments for size, _ in blocks)
