"""The card's clock: what ran on it between two optimizer steps and outside of the training, and
what time it would be there.

Every operation on the card becomes rows (`simulator/roofline.Kernel`). Those of the last complete
step are written once, at the end of the trace, and those outside of the training's passes as
counts. Events read a clock that runs by the same rows; until the first event reads it, nothing is
added up."""

from __future__ import annotations

from collections import Counter
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.simulator import roofline
from brimful_inside.simulator.roofline import (
    BY_AUTOGRAD,
    BY_GRAPH,
    BY_OPTIMIZER,
    MEMORY,
    SYNC,
    Kernel,
    Queue,
    Rates,
)
from brimful_inside.simulator.trace import Outside
from brimful_inside.wire import Card

TRAIN = "train"  # the phase whose steps are timed
# How many rows of a step are kept; a step of more kernels is not timed (its rows would fill the
# host's memory).
MOST_ROWS = 2_000_000
# Outside of the training rows are for events alone, and gone once those have read the clock.
MOST_ROWS_AWAY = 50_000

_graph_task = torch._C._current_graph_task_id  # -1 outside of a backward pass
Row = Tuple[str, str, int, int, int, int, Tuple[int, ...]]  # the fields of a Kernel
Part = Tuple[str, int, int, int, Tuple[int, ...]]  # kind, flops, bytes, launches, shape
Work = Tuple[str, Optional[int]]  # `name` and `loader` of a `trace.Outside`


def rates_of(card: Card) -> Optional[Rates]:
    """The card's peak rates; None where they are not known."""
    if card.bandwidth_bytes_per_s is None or not card.flops.get("fp32"):
        return None
    return Rates(
        bandwidth_bytes_per_s=card.bandwidth_bytes_per_s,
        fp32=card.flops["fp32"],
        **{kind: card.flops.get(kind) for kind in ("tf32", "fp16", "bf16")},
        multiprocessors=card.multiprocessors,
        capability=(card.capability[0], card.capability[1]),
    )


class Clock:
    """What the card did, row by row. `on` is False where the card's rates are not known: then
    nothing is kept."""

    def __init__(self, card: Card):
        self.rates = rates_of(card)
        self.on = self.rates is not None
        self._rows: List[Row] = []  # since the last step
        self._most = MOST_ROWS
        self._whole = True  # all rows of the step in hand are there
        self._step: List[Row] = []  # of the last complete one that counts
        self._phase = TRAIN
        # rows of the step in hand before the script left the training for another phase
        self._away: Optional[int] = None
        self._queue: Optional[Queue] = None  # from the first event on
        self._read = 0  # rows that are in the queue
        self._times: Dict[Row, float] = {}
        self.updates = False  # an optimizer's step is under way
        # of what is under way, where that is outside of the training
        self._outside: Optional[Counter[Row]] = None
        self._begun: Dict[Work, Counter[Row]] = {}  # since it was kept last
        self._kept: Dict[Work, Tuple[Counter[Row], int]] = {}  # with its amount

    @one_at_a_time
    def ran(self, op: str, kernels: Iterable[Part]) -> None:
        """An operation ran on the card, with these kernels."""
        if len(self._rows) > self._most:
            self._drop()
        # What a checkpoint computes again in a backward pass runs with gradients, and so does a
        # closure that an optimizer calls: both are the script's.
        engine = 0
        if not torch.is_grad_enabled():
            engine = BY_AUTOGRAD if _graph_task() != -1 else BY_OPTIMIZER if self.updates else 0
        self._add(
            [
                (op, kind, flops, nbytes, launches, engine, shape)
                for kind, flops, nbytes, launches, shape in kernels
            ]
        )

    def add(
        self,
        op: str,
        kind: str,
        flops: int,
        nbytes: int,
        launches: int = 1,
        shape: Tuple[int, ...] = (),
    ) -> None:
        """Kernels of an operation that is none of ATen's."""
        if self.on:
            self.ran(op, ((kind, flops, nbytes, launches, shape),))

    @one_at_a_time
    def synchronized(self) -> None:
        if self.on:
            self._add([("synchronize", SYNC, 0, 0, 0, 0, ())])

    def mark(self) -> int:
        """A moment, for `captured`."""
        return len(self._rows)

    def since(self, mark: int) -> List[Row]:
        """What ran since `mark`, where no step or other phase began since."""
        return self._rows[mark:]

    @one_at_a_time
    def again(self, rows: List[Row]) -> None:
        if len(self._rows) + len(rows) > self._most:
            self._drop()
        self._add(rows)

    def _add(self, rows: Sequence[Row]) -> None:
        self._rows.extend(rows)
        if self._outside is not None:
            self._outside.update(rows)

    @one_at_a_time
    def outside(self, work: Optional[Work]) -> None:
        """From here on what runs is this work outside of the training's passes; None: it is of the
        training."""
        self._outside = None if work is None else self._begun.setdefault(work, Counter())

    @one_at_a_time
    def keep_outside(self, work: Work, amount: int) -> None:
        """What ran as this work since the last call was so much of it; with 0 it is left out."""
        rows = self._begun.pop(work, None)
        if rows is not None and amount:
            kept, before = self._kept.get(work, (Counter(), 0))
            kept.update(rows)
            self._kept[work] = (kept, before + amount)

    @one_at_a_time
    def outside_was(self, work: Work, other: Work) -> None:
        """What ran as this work since it was kept last was the other."""
        self._begun.setdefault(other, Counter()).update(self._begun.pop(work, {}))

    @one_at_a_time
    def captured(self, mark: int) -> List[Row]:
        """What came since `mark` did not run: it is what a CUDA graph will run when it is
        replayed."""
        rows = [(*row[:5], BY_GRAPH, row[6]) for row in self._rows[mark:]]
        if self._outside is not None:
            self._outside.subtract(self._rows[mark:])
        del self._rows[mark:]
        self._read = min(self._read, mark)
        return rows

    @one_at_a_time
    def replayed(self, rows: List[Row]) -> None:
        if self.on:
            self._add([("a CUDA graph's launch", MEMORY, 0, 0, 0, 0, ()), *rows])

    @one_at_a_time
    def step(self, counts: bool = True) -> None:
        """An optimizer step is complete. One that does not count stands in only where there is no
        other."""
        self._catch_up()
        rows, self._rows, self._read = self._rows, [], 0
        if counts or not self._step:
            self._step = rows if self._whole else []
        self._whole = True
        if self._away is not None:
            self._away, self._most = 0, MOST_ROWS_AWAY

    @one_at_a_time
    def phase(self, name: str) -> None:
        """Another phase begins: what runs outside of the training is no part of a step."""
        if name == self._phase:
            return
        if name == TRAIN and self._away is not None:
            self._catch_up()
            del self._rows[self._away :]
            self._read, self._away, self._most = min(self._read, self._away), None, MOST_ROWS
        elif self._phase == TRAIN:
            self._away = len(self._rows)
            self._most = self._away + MOST_ROWS_AWAY
        self._phase = name

    def _drop(self) -> None:
        """There are too many rows: those of another phase go, or those of a step that is then not
        timed."""
        self._catch_up()
        self._whole = self._whole and self._away is not None
        first = self._away or 0
        del self._rows[first:]
        self._read = min(self._read, first)

    @one_at_a_time
    def now_s(self) -> float:
        """The time at which the card is done with all it was given, in seconds since the first
        event."""
        if not self.on:
            return 0.0
        if self._queue is None:
            self._queue, self._read = Queue(), len(self._rows)
        self._catch_up()
        return max(self._queue.device, self._queue.host)

    def last_step(self) -> List[Kernel]:
        """What ran in the last complete step; at a second call nothing."""
        rows, self._step = self._step, []
        return [Kernel(*row) for row in rows]

    def outside_work(self) -> List[Outside]:
        """What was kept of the work outside of the training; at a second call nothing."""
        kept, self._kept = self._kept, {}
        return [
            Outside(
                name,
                amount,
                tuple((times, Kernel(*row)) for row, times in rows.items() if times),
                loader,
            )
            for (name, loader), (rows, amount) in kept.items()
            if rows
        ]

    def _catch_up(self) -> None:
        if self._queue is None or self.rates is None:
            return
        for row in self._rows[self._read :]:
            seconds = self._times.get(row)
            kernel = Kernel(*row)
            if seconds is None:
                seconds = self._times[row] = roofline.kernel_time(
                    kernel, self.rates, roofline.DEFAULT
                ).seconds
            self._queue.run(kernel.kind, roofline.dispatch_time(kernel), seconds)
        self._read = len(self._rows)
