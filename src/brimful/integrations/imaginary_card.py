"""An imaginary card in this very process, for as long as a test runs."""

import io
import re
from collections import defaultdict

from brimful.decide.check import held_of
from brimful.decide.memory.breakdown import annotate, break_down
from brimful.decide.memory.fit import context_of
from brimful.measure.gpus import to_card
from brimful.show.check_sections import held_text
from brimful.trials.devices import CardRequest, cards
from brimful.units import format_bytes
from brimful.values import Breakdown
from brimful_inside import imaginary
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import decode

_AMOUNT = re.compile(r"[\d.]+\s*[kmgt]i?b?(:\d+)?", re.IGNORECASE)
_NAMED = 10  # lines of the script that hold most at the peak


class ImaginaryCard:
    """The card of a test, or cards of one kind, until `leave`."""

    def __init__(self, name: str, limit_bytes: int | None = None) -> None:
        """`name`: of the catalogue ("a100-40gb", "l4:2"), or a memory ("20 GiB"). Raises
        UsageError, NoSuchDevice."""
        by_memory = _AMOUNT.fullmatch(name.strip())
        kind = cards(CardRequest(gpu_memory=name) if by_memory else CardRequest(gpu=name))[0]
        self.gpu, self.count, self.limit_bytes = kind.gpu, kind.count, limit_bytes
        self._traces: dict[int, io.StringIO] = defaultdict(io.StringIO)  # by the card's number
        card = to_card(kind.gpu)
        capacity = card.total_bytes - card.context_bytes
        self._gpu = imaginary.enter(card, capacity, self._traces.__getitem__, count=kind.count)
        self._gpu.annotations.calls.repeats = None  # whatever a test calls runs
        self._gpu.cards.phase("train")

    def breakdown(self) -> Breakdown | None:
        """What the device peak so far is made of, on the fullest card; None where nothing was
        allocated."""
        self._gpu.cards.flush()
        wholes = []
        for file in self._traces.values():
            trace = decode(file.getvalue().splitlines())
            program = program_of(trace)
            uses_cudnn = any("conv" in name for name in program.operations)
            context = int(context_of(self.gpu, uses_cudnn, []).value)
            if made := break_down(program, program.sizes, annotate(trace), context):
                wholes.append(made.whole)
        return max(wholes, key=_device_bytes, default=None)

    def peak_bytes(self) -> int:
        """The device peak so far, context included, of the fullest card; predicted."""
        return _device_bytes(self.breakdown())

    def where(self) -> str:
        """What holds most at that peak, a line each."""
        breakdown = self.breakdown()
        rows = sorted(held_of(breakdown), key=lambda row: -row.bytes)[:_NAMED]
        peak = f"{format_bytes(_device_bytes(breakdown))} at the peak on {self.gpu.name}"
        return "\n".join([f"{peak} (predicted):", *(held_text(row, row.where) for row in rows)])

    def too_much(self) -> str:
        """A sentence, where the peak is above the limit; else ""."""
        peak, limit = self.peak_bytes(), self.limit_bytes
        if limit is None or peak <= limit:
            return ""
        return (
            f"The test takes {format_bytes(peak)} on {self.gpu.name} (predicted), and is limited "
            f"to {format_bytes(limit)}."
        )

    def leave(self) -> None:
        self._gpu.leave()
        for file in self._traces.values():
            file.close()


def _device_bytes(breakdown: Breakdown | None) -> int:
    return sum(breakdown.parts.values()) if breakdown is not None else 0
