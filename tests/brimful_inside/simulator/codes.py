"""Random programs as `replay.play_code` takes them, with the bytes of their births."""

from __future__ import annotations

import random

MIB = 1 << 20
EDGES = [0, 1, 512, 513, MIB - 511, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 19 * MIB, 20 * MIB, 2 * MIB]


def plain_program(rng: random.Random, events: int) -> tuple[list, list[int]]:
    """Births, ends, phases and emptied caches; the same few sizes come again, as they do from step to step."""
    return _program(rng, events, ("malloc", "malloc", "malloc", "free", "free", "free", "phase", "empty"))


def any_program(rng: random.Random, events: int) -> tuple[list, list[int]]:
    """Streams, private pools, retired blocks and changed settings as well."""
    kinds = ("malloc", "malloc", "malloc", "free", "free", "phase", "empty", "stream", "pool", "retire", "ready", "settings")
    return _program(rng, events, kinds)


def _program(rng: random.Random, events: int, kinds: tuple[str, ...]) -> tuple[list, list[int]]:
    code: list = []
    sizes: list[int] = []
    living: list[int] = []
    retired: list[int] = []
    common = [rng.choice([*EDGES, rng.randrange(4096), rng.randrange(3 * MIB), rng.randrange(60 * MIB)]) for _ in range(6)]
    for _ in range(events):
        kind = rng.choice(kinds)
        if kind in ("phase", "empty", "stream", "pool", "settings") and rng.random() < 0.6:
            kind = "malloc"  # or nothing would ever stay in the cache
        if kind == "malloc":
            sizes.append(rng.choice([*common, rng.choice(EDGES), rng.randrange(30 * MIB)]))
            living.append(len(sizes))
            code.append(0)
        elif kind == "free" and living:
            code.append(living.pop(rng.randrange(len(living))))
        elif kind == "retire" and living:
            retired.append(living.pop(rng.randrange(len(living))))
            code.append(("retire", retired[-1]))
        elif kind == "ready" and retired:
            code.append(("ready", retired.pop(rng.randrange(len(retired)))))
        elif kind == "phase":
            code.append(rng.choice(["start", "train", "eval"]))
        elif kind == "empty":
            code.append(None)
        elif kind in ("stream", "pool"):
            code.append((rng.choice([kind, kind, "release_pool", "empty_pool"]), rng.randrange(3)))
        elif kind == "settings":
            code.append(("settings", rng.choice(["roundup_power2_divisions:4", "roundup_power2_divisions:[256:1,>:8]"])))
    return code, sizes
