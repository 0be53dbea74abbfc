"""Random programs of one card, with the bytes of their allocations."""

from __future__ import annotations

import random

from brimful_inside.simulator.program import Event, Program

MIB = 1 << 20
EDGES = [0, 1, 512, 513, MIB - 511, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 19 * MIB, 20 * MIB, 2 * MIB]
PLAIN = ("malloc", "malloc", "malloc", "free", "free", "free", "phase", "empty_cache")
ANY = ("malloc", "malloc", "malloc", "free", "free", *PLAIN[6:], "stream", "pool", "retire", "ready", "settings")


def program_from(events: list[Event], sizes: list[int]) -> Program:
    return Program(tuple(events), tuple(sizes), ((),) * len(sizes))


def random_program(rng: random.Random, length: int, kinds: tuple[str, ...] = ANY) -> Program:
    """The same few sizes come again, as they do from step to step."""
    events: list[Event] = []
    sizes: list[int] = []
    living: list[int] = []
    retired: list[int] = []
    common = [rng.choice([*EDGES, rng.randrange(4096), rng.randrange(3 * MIB), rng.randrange(60 * MIB)]) for _ in range(6)]
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
            events.append((rng.choice([kind, kind, "release_pool", "empty_pool"]), rng.randrange(3)))
        elif kind == "settings":
            events.append((kind, rng.choice(["roundup_power2_divisions:4", "roundup_power2_divisions:[256:1,>:8]"])))
    return program_from(events, sizes)
