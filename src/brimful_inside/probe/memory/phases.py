"""The phases of a run, each with a memory peak of its own: reset at its start, read at its end, the
worst of its visits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Optional

from brimful_inside.wire import PhasePeak

SETUP, TRAIN, EVAL = "setup", "train", "eval"
_NUMBERS = ("allocated_bytes", "reserved_bytes", "device_bytes", "host_bytes")


@dataclass(eq=False)
class Visit:
    """One stay in a phase that the script named."""

    name: str
    returns_to: str


class Phases:
    """`device` and `host` are meters; `device.start(name)` resets its peaks and, on an imaginary
    card, writes to the trace.
    """

    def __init__(self, device: Any, host: Any):
        self._device = device
        self._host = host
        self.named: List[Visit] = []  # those that the script is in, the outermost first
        self._peaks: Dict[str, PhasePeak] = {}
        self._unphased: Optional[PhasePeak] = None
        self.current = SETUP
        self._start(SETUP)

    def to(self, name: str, closing_as: Optional[str] = None) -> bool:
        """Goes to a phase that the script did not name, unless inside a named one; the visit that
        ends counts for `closing_as`, if given. True if there was a change."""
        if self.named or name == self.current:
            return False
        if closing_as is not None:
            self._device.phase_was(closing_as)
        self._close(closing_as or self.current)
        self._start(name)
        return True

    def enter(self, name: str) -> Visit:
        visit = Visit(name, returns_to=self.current)
        self._close(self.current)
        self.named.append(visit)
        self._start(name)
        return visit

    def leave(self, visit: Visit, cached: bool, then: Optional[str] = None) -> None:
        """`then`: the phase that follows in place of the one before, unless inside a named one."""
        if visit in self.named:
            del self.named[self.named.index(visit) :]
            self._close(visit.name, cached)
            self._start(visit.returns_to if then is None or self.named else then)

    def _start(self, name: str) -> None:
        self.current = name
        self._host.reset()
        self._device.start(name)

    def _reading(self, cached: bool = False) -> PhasePeak:
        allocated, reserved, on_device = self._device.peaks()
        return PhasePeak(
            allocated,
            reserved,
            on_device,
            self._host.peak_bytes(),
            cached=cached,
            host_is_true=self._host.is_true,
        )

    def _close(self, name: str, cached: bool = False) -> None:
        reading = self._reading(cached)
        self._peaks[name] = _with_visit(self._peaks.get(name), reading)
        self._unphased = _worst(self._unphased, reading)

    def read(self) -> Dict[str, PhasePeak]:
        peaks = {
            **self._peaks,
            self.current: _with_visit(self._peaks.get(self.current), self._reading()),
        }
        none: Dict[str, Any] = dict.fromkeys(_NUMBERS)
        return {
            name: replace(peak, **none, host_is_true=False) if peak.cached else peak
            for name, peak in peaks.items()
        }

    def whole(self) -> PhasePeak:
        return _worst(self._unphased, self._reading())


def _worst(a: Optional[PhasePeak], b: PhasePeak) -> PhasePeak:
    if a is None:
        return replace(b, visits=1, cached=False)
    both = {
        name: [n for n in (getattr(a, name), getattr(b, name)) if n is not None]
        for name in _NUMBERS
    }
    most: Dict[str, Any] = {name: max(numbers, default=None) for name, numbers in both.items()}
    return PhasePeak(**most, visits=a.visits, host_is_true=a.host_is_true and b.host_is_true)


def _with_visit(before: Optional[PhasePeak], visit: PhasePeak) -> PhasePeak:
    """One more visit. A cached one has no numbers of its own, so one that was not cached wins over
    it.
    """
    if before is None:
        return visit
    if before.cached == visit.cached:
        peak = before if before.cached else _worst(before, visit)
    else:
        peak = visit if before.cached else before
    return replace(peak, visits=before.visits + 1)
