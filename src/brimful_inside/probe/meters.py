"""Device memory by phase: none on a CPU, the imaginary card's, or a real card's, shared with the script's own reading."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from brimful_inside.probe.hub import guarded

Peaks = Tuple[Optional[int], Optional[int], Optional[int]]  # allocated, reserved, device; bytes


class NoDevice:
    """A CPU has no device memory."""

    context_bytes: Optional[int] = None

    def start(self, name: str) -> None:
        pass

    def step(self, number: int) -> None:
        pass

    def peaks(self) -> Peaks:
        return None, None, None

    def flush(self) -> None:
        pass


class ImaginaryDevice:
    """The imaginary card, which keeps the account itself and writes the trace."""

    def __init__(self, gpu: Any, context_bytes: int):
        self._gpu = gpu
        self.context_bytes: Optional[int] = context_bytes

    def start(self, name: str) -> None:
        self._gpu.phase(name)

    def step(self, number: int) -> None:
        self._gpu.step(number)

    def peaks(self) -> Peaks:
        allocator = self._gpu.allocator
        reserved = int(allocator.peak_reserved)
        return int(allocator.peak_allocated), reserved, reserved + (self.context_bytes or 0)

    @guarded
    def flush(self) -> None:
        self._gpu.flush()

    @property
    def approximations(self) -> Any:
        return {str(name): int(count) for name, count in dict(self._gpu.approximations).items()}
