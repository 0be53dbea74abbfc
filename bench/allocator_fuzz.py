"""Random programs for two models of PyTorch's caching allocator: `python -m bench.allocator_fuzz`.

brimful's own, behind the imaginary card's ledger, and `bench.second_allocator`, written apart from
it. After every event the bytes allocated, reserved and active, the segments, the blocks, and
whether memory ran out have to be the same. A program that tells them apart is shrunk.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Annotated, Any

import torch

from bench import harness
from bench.second_allocator import MIB, Allocator, Undefined
from brimful_inside.imaginary.state.ledger import Ledger
from brimful_inside.imaginary.state.streams import Captures
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import settings_from, spelled
from brimful_inside.wire import Card

PROGRAMS, EVENTS, SHOWN, CONTEXT = 300, 120, 3, 30 * MIB
GRAPHS = 10  # private pools from this number on are a graph's own
UNDEFINED = "undefined"
EDGES = [1, 512, 513, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 19 * MIB, 20 * MIB, 2 * MIB]
PLAIN = ["allocate"] * 5 + ["free"] * 6 + ["empty_cache"]
STREAMS = [*PLAIN * 2, *["record_stream"] * 6, *["synchronize"] * 3]
POOLS = [*STREAMS, *["make", "enter", "leave", "drop", "capture", "captured"] * 2]
SPLIT = "max_split_size_mb:{split}"
ROUNDUP = ("roundup_power2_divisions:4", "roundup_power2_divisions:[1:2,4:8,8:1,16:0,32:4,>:2]")
COLLECT = "garbage_collection_threshold:{share},per_process_memory_fraction:{most}"
GROW, OFF = "expandable_segments:True", "expandable_segments:False"
ANY = ("", SPLIT, GROW, COLLECT)
# By name: texts of settings, and which events there are.
SETTINGS: dict[str, tuple[tuple[str, ...], list[str]]] = {
    "default": (("",), PLAIN),
    "max_split_size": ((SPLIT, SPLIT + ",max_non_split_rounding_mb:{split}"), PLAIN),
    "roundup": (ROUNDUP, PLAIN),
    "garbage collection": ((COLLECT, f"{COLLECT},{SPLIT}"), PLAIN),
    "expandable": ((GROW, f"{GROW},{SPLIT}", f"{GROW},{COLLECT}"), PLAIN),
    "fraction": (("per_process_memory_fraction:{most}",), PLAIN),
    "streams": (("", SPLIT, GROW), STREAMS),
    "private pools": (("", SPLIT, GROW), POOLS),
    "run-time changes": (ANY, [*PLAIN * 2, *["set"] * 3, "set_fraction"]),
    "all together": (ANY, [*POOLS, *["set", "set_fraction"] * 4]),
}
CHANGES = (
    "",
    GROW,
    OFF,
    SPLIT,
    f"{SPLIT},{GROW}",
    f"{SPLIT},{OFF}",
    *ROUNDUP,
    COLLECT.split(",")[0],
)
Program = list[tuple[Any, ...]]


def random_program(rng: random.Random, name: str, full: bool) -> Program:
    """Its first event is the card. `full`: it has room for little."""
    texts, kinds = SETTINGS[name]

    def filled(text: str) -> str:
        shares = {"share": rng.choice((0.3, 0.5, 0.8)), "most": rng.choice((0.6, 0.8, 0.95))}
        return text.format(split=rng.choice((20, 21, 32, 48)), **shares)

    capacity = 2 * MIB * rng.randrange(30, 150) if full else 8192 * MIB
    program: Program = [("card", capacity, capacity + CONTEXT, filled(rng.choice(texts)))]
    common = [rng.choice(EDGES), rng.randrange(1, 2 * MIB), *rng.choices(range(1, 60 * MIB), k=3)]
    living: list[int] = []
    for number in range(EVENTS):
        size = rng.choice([*common, *common, rng.choice(EDGES), rng.randrange(1, 30 * MIB)])
        stream = rng.choice((0, 0, 1, 2)) if "record_stream" in kinds else 0
        block, pool = rng.choice(living[-12:] or [0]), rng.randrange(2)
        graph, other = pool + GRAPHS, rng.randrange(1, 3)
        events = {
            "allocate": ("allocate", number, size, stream),
            "free": ("free", block),
            "record_stream": ("record_stream", block, other),
            "synchronize": ("synchronize", rng.choice((None, other))),
            "empty_cache": ("empty_cache",),
            "make": ("make", pool),
            "enter": ("begin", pool),
            "leave": ("end", pool),
            "capture": ("begin", graph, other),
            "captured": ("end", graph),
            "drop": rng.choice([("drop", pool, True), ("drop", graph, False)]),
            "set": ("set", filled(rng.choice(CHANGES))),
            "set_fraction": ("set_fraction", rng.choice((0.5, 0.7, 0.9, 1.0))),
        }
        kind = rng.choice(kinds)
        living += [number] if kind == "allocate" else []
        living = [name for name in living if kind != "free" or name != block]
        program.append(events[kind])
    return program


class Brimful:
    """brimful's model of a card, with a method for each kind of event, as the second one has."""

    def __init__(self, capacity: int, total: int, text: str) -> None:
        self.stream, self.living = 0, {}
        self.allocator = CachingAllocator(capacity, settings_from(text), total)
        card = Card("card", total, total - capacity, [8, 0], 1)
        self.ledger = Ledger(self.allocator, card, None, lambda: self.stream, 0, {})
        self.captures = Captures()
        self.set, self.empty_cache = self.ledger.change_settings, self.ledger.empty_cache
        self.synchronize, self.free = self.ledger.work.synchronized, self.living.pop

    def allocate(self, name: int, size: int, stream: int) -> bool:
        storage, self.stream = torch.UntypedStorage(size, device="meta"), stream
        try:
            self.ledger.add(storage, "op")
        except torch.OutOfMemoryError:
            return False
        self.living[name] = storage
        return True

    def record_stream(self, name: int, stream: int) -> None:
        self.ledger.record_stream(self.living[name], stream)

    def set_fraction(self, fraction: float) -> None:
        self.set(spelled(self.allocator.settings._replace(memory_fraction=fraction)))

    def make(self, pool: int) -> None:
        self.captures.retain(self.ledger, (0, pool))

    def begin(self, pool: int, stream: int | None = None) -> None:
        self.make(pool)
        captures = stream is not None
        self.ledger.divert((0, pool), lambda asking: stream in (None, asking), captures)

    def end(self, pool: int) -> None:
        self.ledger.end_divert((0, pool))
        if pool < GRAPHS:
            self.captures.release(self.ledger, (0, pool))

    def drop(self, pool: int, empty: bool) -> None:
        self.captures.release(self.ledger, (0, pool), empty)

    def state(self) -> dict[str, int]:
        segments = self.allocator.segments()
        pieces = [piece for segment in segments for piece in segment.pieces]
        return {
            "allocated": self.allocator.allocated,
            "reserved": self.allocator.reserved,
            "active": sum(piece.size for piece in pieces if piece.used),
            "segments": len(segments),
            "blocks": len(pieces),
        }


def applies(second: Allocator, kind: str, *arguments: Any) -> bool:
    """Whether a script could do this now. Of what ran out of memory it can do nothing. What was
    freed in a capture gets its events late, at the next request: nothing waits for them till then.
    """
    name = arguments[0] if arguments else None
    uses, scopes = second.uses.get(name, 0), [scope[0] for scope in second.scopes]
    is_graph, capturing = len(arguments) > 1, second.capturing
    return {
        "free": name in second.living,
        "record_stream": name in second.living,
        "synchronize": not (capturing or second.deferred),
        "make": name not in second.uses,
        "begin": not (capturing or name in second.uses)
        if is_graph
        else uses > 0 and name not in scopes,
        "end": name in scopes,
        "drop": uses > 0 and name not in scopes and not (capturing or second.deferred),
    }.get(kind, True)


def difference(program: Program) -> tuple[str, Counter[str]]:
    """What the first event that tells the models apart told: "" where none does, `UNDEFINED` where
    PyTorch has no answer. And how many `events` there were till then, and how many were `refused`.
    """
    (_, *card), *events = program
    models = (second := Allocator(*card)), Brimful(*card)
    counts: Counter[str] = Counter(events=0, refused=0)
    for kind, *arguments in events:
        if applies(second, kind, *arguments):
            try:
                refused = [getattr(model, kind)(*arguments) is False for model in models]
            except Undefined:
                return UNDEFINED, counts
            states = [
                {"refused": no, **model.state()} for no, model in zip(refused, models, strict=True)
            ]
            if states[0] != states[1]:
                return "second: {}, brimful: {}".format(*states), counts
            counts.update(events=1, refused=int(refused[0]))
    return "", counts


def shrunk(program: Program) -> Program:
    """The shortest that still tells the models apart, by leaving out one piece after another."""
    size = len(program) // 2
    while size:
        at = 1
        while at < len(program):
            shorter = program[:at] + program[at + size :]
            if difference(shorter)[0] not in ("", UNDEFINED):
                program = shorter
            else:
                at += size
        size //= 2
    return program


def run(name: str, full: bool, programs: int) -> dict[str, Any]:
    """One row of the table: programs of one setting on one card."""
    counts: Counter[str] = Counter(undefined=0, differences=0)
    shortest = []
    for seed in range(programs):
        program = random_program(random.Random(f"{name} {full} {seed}"), name, full)
        what, counted = difference(program)
        counts.update(counted, undefined=int(what == UNDEFINED))
        if what not in ("", UNDEFINED):
            counts["differences"] += 1
            shortest += [shrunk(program)] if len(shortest) < SHOWN else []
    whats = [{"program": program, "what": difference(program)[0]} for program in shortest]
    card = "nearly full" if full else "roomy"
    return {"setting": name, "card": card, "programs": programs, **counts, "shortest": whats}


def main(
    *,
    only: Annotated[list[str] | None, "names of settings"] = None,
    programs: Annotated[int, "random programs of each setting, on each card"] = PROGRAMS,
    out: harness.Out = harness.RESULTS,
) -> int:
    """Answers 1 where there is a difference. Programs that reach what PyTorch leaves undefined are
    compared up to there.
    """
    rows, columns = [], ("programs", "events", "refused", "undefined", "differences")
    print(f"{'setting':18} {'card':11}", *(f"{column:>11}" for column in columns))
    for name in harness.choose(SETTINGS, only):
        for full in False, True:
            rows.append(row := run(name, full, programs))
            print(f"{name:18} {row['card']:11}", *(f"{row[column]:11,}" for column in columns))
            for case in row["shortest"]:
                print("   ", *case["program"], case["what"], sep="\n    ")
    if not only:
        what = "random programs in two models of PyTorch's caching allocator"
        harness.keep("allocator", {**harness.heading(what, "brimful"), "rows": rows}, out, of="")
    return int(any(row["differences"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(harness.run(main))
