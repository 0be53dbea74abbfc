"""Several cards as one object: each has books, a clock and streams of its own."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Callable, ContextManager, Dict, List, Optional, TextIO, Tuple

import torch

from brimful_inside.imaginary.cuda_api import devices
from brimful_inside.imaginary.cuda_api.data_parallel import patch_transfers
from brimful_inside.imaginary.several.moves import DevicesOfCards
from brimful_inside.imaginary.several.operations import OperationsOnCards, tensors_in
from brimful_inside.imaginary.several.places import Places
from brimful_inside.imaginary.several.streams import StreamsOfCards
from brimful_inside.imaginary.several.traces import LateTrace
from brimful_inside.imaginary.state.clock import Clock
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.ledger import Ledger
from brimful_inside.imaginary.state.tensors import is_meta, plain_parts
from brimful_inside.simulator.allocator import CachingAllocator, settings_in
from brimful_inside.wire import Card

__all__ = ["ImaginaryGpus"]

Tensor = torch.Tensor


class ImaginaryGpus(ImaginaryGpu):
    """`count` cards of one kind, of which one process believes that they are there.

    `open_trace` opens the trace of a card when that is first used. What the base class says of its card (`ledger`,
    `allocator`, `clock`) is here of the card where the thread is.
    """

    def __init__(
        self,
        card: Card,
        count: int,
        capacity_bytes: Optional[int] = None,
        open_trace: Optional[Callable[[int], TextIO]] = None,
        **options: Any,
    ):
        self.count = count
        self.places = Places()
        self.traces: List[Optional[Any]] = [None] * count
        if open_trace is not None:
            self.traces = [LateTrace(partial(open_trace, index)) for index in range(count)]
        self._ledgers: List[Ledger] = []
        self._clocks = [Clock(card) for _ in range(count)]
        super().__init__(card, capacity_bytes, self.traces[0], **options)
        self.streams = StreamsOfCards(self.places)
        self.devices = DevicesOfCards(self)
        for index in range(1, count):
            trace = self.traces[index]
            allocator = CachingAllocator(capacity_bytes, settings_in(os.environ), card.total_bytes)
            stream = _stream_of(self, index)
            self._ledgers.append(Ledger(allocator, card, trace, stream, index, self._ledgers[0].storages))
            if trace is not None:
                trace.write(self._header())

    def enter(self) -> None:
        super().enter()
        patch_transfers(self, self.patches)

    def _operations(self) -> OperationsOnCards:
        return OperationsOnCards(self)

    # --- what is of the card where the thread is --------------------------------------------------------------------------

    @property
    def ledgers(self) -> List[Ledger]:
        return self._ledgers

    @property
    def ledger(self) -> Ledger:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._ledgers[self.places.target]

    @ledger.setter
    def ledger(self, first: Ledger) -> None:
        self._ledgers.append(first)

    @property
    def allocator(self) -> CachingAllocator:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.ledger.allocator if self._ledgers else self._first_allocator

    @allocator.setter
    def allocator(self, first: CachingAllocator) -> None:
        """The first card's, before there are ledgers."""
        self._first_allocator = first

    @property
    def clock(self) -> Clock:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._clocks[self.places.target]

    @clock.setter
    def clock(self, first: Clock) -> None:
        self._clocks[0] = first

    def clock_of(self, index: int) -> Clock:
        return self._clocks[index]

    # --- all of them ------------------------------------------------------------------------------------------------------

    def phase(self, name: str) -> None:
        self.garbage.look()
        for clock, ledger in zip(self._clocks, self._ledgers):
            clock.phase(name)
            ledger.phase(name)

    def step(self, number: int) -> None:
        self.garbage.look()
        for clock, ledger in zip(self._clocks, self._ledgers):
            clock.step()
            ledger.step(number)

    def on_out_of_memory(self, callback: Callable[[BaseException], None]) -> None:
        for ledger in self._ledgers:
            ledger.on_out_of_memory = callback

    def end_trace(self) -> None:
        if self._trace is not None and self.is_open and not self.in_bad_fork:
            for clock, ledger in zip(self._clocks, self._ledgers):
                ledger.write_runs(clock.last_step())
        self.flush()

    def flush(self) -> None:
        if self.is_open and not self.in_bad_fork:
            for ledger in self._ledgers:
                ledger.flush()

    def leave(self) -> None:
        super().leave()
        for ledger in self._ledgers:
            ledger.forget()

    def _forked(self) -> None:
        super()._forked()
        if self.is_open:
            for ledger in self._ledgers:
                ledger.forget()

    # --- which card -------------------------------------------------------------------------------------------------------

    def index_of(self, device: Any) -> int:
        return self.devices.index_of("cuda" if device is None else device)

    def index_of_tensor(self, tensor: Tensor) -> Optional[int]:
        """The card that a tensor on the meta device is on; None for the script's own meta tensors."""
        for part in plain_parts(tensor):
            entry = self._ledgers[0].storages.get(part.untyped_storage()._cdata)
            if entry is not None:
                return entry.ledger.index
        return None

    def device_of(self, tensor: Tensor) -> torch.device:
        with torch._C.DisableTorchFunction():
            index = self.index_of_tensor(tensor)
        return devices.CUDA if index is None else torch.device("cuda", index)

    def device_of_storage(self, storage: Any) -> torch.device:
        entry = self._ledgers[0].storages.get(storage._cdata)
        return devices.CUDA if entry is None else torch.device("cuda", entry.ledger.index)

    def device_of_any(self, args: Tuple, kwargs: Dict[str, Any]) -> torch.device:
        return next((self.device_of(tensor) for tensor in tensors_in(args, kwargs) if is_meta(tensor)), devices.CUDA)

    def named(self, device: Any) -> ContextManager[None]:
        self.touch()
        return self.places.on(self.index_of(device))

    def current_card(self) -> int:
        return self.places.current

    def set_current_card(self, index: int) -> None:
        self.places.current = index


def _stream_of(gpu: ImaginaryGpus, index: int) -> Callable[[], int]:
    return lambda: gpu.streams.of(index)
