"""The cards of a process, each with its ledger and its clock: what all of them are told."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, Callable, Dict, List, Optional, TextIO, Union

import torch

from brimful_inside.imaginary.state.clock import Clock
from brimful_inside.imaginary.state.garbage import Garbage
from brimful_inside.imaginary.state.ledger import Ledger
from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.streams import CurrentStreams
from brimful_inside.imaginary.state.trace_file import LateFile
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import AllocatorSettings
from brimful_inside.simulator.trace import TRACE_VERSION, PhaseWas, Scaler, Step, encode_row
from brimful_inside.wire import Card

OpenTrace = Union[None, TextIO, Callable[[int], TextIO]]


class Cards:
    """`count` cards of one kind."""

    # a step or a phase is over (attribution.repeats.Repeats)
    stretch_ends: Callable[[], None] = staticmethod(lambda: None)

    def __init__(
        self,
        card: Card,
        count: int,
        capacity_bytes: Optional[int],
        settings: AllocatorSettings,
        trace: OpenTrace,
        streams: CurrentStreams,
        garbage: Garbage,
    ):
        """`trace`: a file for the one card, or what opens the file of card i when that is first
        used. `settings`: the allocators', to begin with."""
        self.card = card
        self._garbage = garbage
        self.storages: Dict[int, Any] = {}  # of all cards, by StorageImpl's address
        self.clocks = [Clock(card) for _ in range(count)]
        self.ledgers: List[Ledger] = []
        for index in range(count):
            file: Any = LateFile(partial(trace, index), self._header) if callable(trace) else trace
            if file is not None and file is trace:
                file.write(self._header())
            allocator = CachingAllocator(capacity_bytes, settings, card.total_bytes)
            stream = partial(streams.of, index)
            self.ledgers.append(Ledger(allocator, card, file, stream, index, self.storages))

    def _header(self) -> str:
        header = {
            "trace_version": TRACE_VERSION,
            "card": self.card.name,
            "capability": list(self.card.capability),
        }
        return json.dumps({**header, "torch": torch.__version__}) + "\n"

    def insert(self, card: Card, capacity_bytes: Optional[int]) -> None:
        """They become ones like `card`, in a process that begins. Not once they were used."""
        self.card = card
        self.clocks[:] = [Clock(card) for _ in self.clocks]
        for ledger in self.ledgers:
            ledger.card = card
            ledger.allocator.insert(capacity_bytes, card.total_bytes)

    @one_at_a_time
    def phase(self, name: str) -> None:
        """From here on peaks belong to phase `name`."""
        self.stretch_ends()
        self._garbage.poll()
        for clock, ledger in zip(self.clocks, self.ledgers):
            clock.phase(name)
            ledger.phase(name)

    def phase_was(self, name: str) -> None:
        """The peaks since the latest call of `phase` belong to phase `name`."""
        self.note(PhaseWas(name))

    @one_at_a_time
    def step(self, number: int, counts: bool = True) -> None:
        """The `number`-th optimizer step is complete. `counts`: it shows how long a step takes."""
        self.stretch_ends()
        self._garbage.step(self, counts)
        for clock in self.clocks:
            clock.step(counts)
        self.note(Step(number))

    @one_at_a_time
    def scaler_decides(self) -> None:
        self.note(Scaler())

    def note(self, row: Any) -> None:
        for ledger in self.ledgers:
            ledger.note(row)

    def on_out_of_memory(self, callback: Callable[[BaseException], None]) -> None:
        """`callback` gets every torch.OutOfMemoryError before one is raised; the script may catch
        it and go on.

        It is called at the allocation, with an exception of the same message that never had a
        traceback."""
        for ledger in self.ledgers:
            ledger.on_out_of_memory = callback

    def change_settings(self, text: str) -> None:
        for ledger in self.ledgers:
            ledger.change_settings(text)

    @one_at_a_time
    def end_trace(self) -> None:
        """As `flush`, with what ran in the last complete step and outside of the training: nothing
        more is to come."""
        for clock, ledger in zip(self.clocks, self.ledgers):
            at_the_end = (*clock.last_step(), *clock.outside_work())
            ledger.note_lines("".join(encode_row(row) + "\n" for row in at_the_end))
        self.flush()

    def flush(self) -> None:
        """All rows are in the trace files."""
        for ledger in self.ledgers:
            ledger.trace.flush()

    def forget(self) -> None:
        for ledger in self.ledgers:
            ledger.forget()
