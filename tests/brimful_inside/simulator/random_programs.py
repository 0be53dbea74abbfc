"""Random programs of one card, and the caching allocator's default rules once more, as plainly as
they can be written.

The tests hold the quick one against it."""

import random

from brimful_inside.simulator.program import Event, Program, program_of
from brimful_inside.simulator.trace import Trace, decode_row

MIB = 1 << 20
CONFIGURATIONS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:20,garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:4,expandable_segments:True",
    "large_segment_size_mb:32",
]
EDGES = [
    0,
    1,
    512,
    513,
    MIB - 511,
    MIB,
    MIB + 1,
    10 * MIB - 512,
    10 * MIB,
    19 * MIB,
    20 * MIB,
    2 * MIB,
]
PLAIN = ("malloc", "malloc", "malloc", "free", "free", "free", "phase", "empty_cache")
ANY = (
    "malloc",
    "malloc",
    "malloc",
    "free",
    "free",
    *PLAIN[6:],
    "stream",
    "pool",
    "retire",
    "ready",
    "settings",
)


def program(*rows: tuple) -> Program:
    """Of a trace with these rows, as simulator/trace.py lists them."""
    return program_of(Trace({}, [decode_row(list(row)) for row in rows]))


def program_from(events: list[Event], sizes: list[int]) -> Program:
    return Program(tuple(events), tuple(sizes), ((),) * len(sizes))


def random_program(rng: random.Random, length: int, kinds: tuple[str, ...] = ANY) -> Program:
    """The same few sizes come again, as they do from step to step."""
    events: list[Event] = []
    sizes, living, retired = [], [], []
    common = [
        rng.choice([*EDGES, rng.randrange(4096), rng.randrange(3 * MIB), rng.randrange(60 * MIB)])
        for _ in range(6)
    ]
    for _ in range(length):
        kind = rng.choice(kinds)
        if kind in ("phase", "empty_cache", "stream", "pool", "settings") and rng.random() < 0.6:
            kind = "malloc"  # or nothing would ever stay in the cache
        if kind == "malloc":
            living.append(len(sizes))
            sizes.append(rng.choice([*common, rng.choice(EDGES), rng.randrange(30 * MIB)]))
            events.append(("malloc", "op", None, 0))
        elif kind in ("free", "retire") and living:
            number = living.pop(rng.randrange(len(living)))
            events.append((kind, number))
            retired += [number] if kind == "retire" else []
        elif kind == "ready" and retired:
            events.append((kind, retired.pop(rng.randrange(len(retired)))))
        elif kind == "phase":
            events.append((kind, rng.choice(["start", "train", "eval"])))
        elif kind == "empty_cache":
            events.append((kind,))
        elif kind in ("stream", "pool"):
            events.append(
                (rng.choice([kind, kind, "release_pool", "empty_pool"]), rng.randrange(3))
            )
        elif kind == "settings":
            events.append(
                (
                    kind,
                    rng.choice(
                        ["roundup_power2_divisions:4", "roundup_power2_divisions:[256:1,>:8]"]
                    ),
                )
            )
    return program_from(events, sizes)


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
            whole = (
                2 * MIB
                if small
                else 20 * MIB
                if size < 10 * MIB
                else 2 * MIB * -(-size // (2 * MIB))
            )
            self.segments.insert(0, (small, [[whole, None]]))  # below the earlier ones
            number, place = 0, 0
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
