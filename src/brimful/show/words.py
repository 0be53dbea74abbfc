"""How values are put into words: numbers with their units and sources, outcomes, settings. For every view alike."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from brimful.units import format_bytes
from brimful.values import Estimate, Outcome, PeakEstimate, PhasePeak, Sample, Setting, Source

NOTHING = "–"

OUTCOMES = {
    Outcome.COMPLETED: "completed",
    Outcome.OUT_OF_DEVICE_MEMORY: "out of device memory",
    Outcome.OUT_OF_HOST_MEMORY: "out of host memory",
    Outcome.TIMED_OUT: "timed out",
    Outcome.KILLED: "killed",
    Outcome.CRASHED: "the script failed",
    Outcome.UNSUPPORTED: "not supported",
    Outcome.DOOR_CLOSED: "the door did not open",
    Outcome.NO_STEP: "no optimizer stepped",
    Outcome.INTERRUPTED: "interrupted",
}

#: Which of the four memories a peak can show, the one that a budget is held against first.
_DEVICE_FIRST = ("device", "reserved", "allocated", "host")


@dataclass(frozen=True)
class Shown:
    """A number as it is read: text with unit, where it comes from, its interval, and what it rests on."""

    text: str
    source: Source | None = None
    interval: str | None = None
    note: str | None = None


ABSENT = Shown(NOTHING)


def bytes_text(value: float | None) -> str:
    return NOTHING if value is None else format_bytes(int(value))


def count_text(value: float | None) -> str:
    """Whole numbers with thousands apart; others to three significant digits."""
    if value is None:
        return NOTHING
    return f"{int(value):,}" if float(value).is_integer() else f"{value:,.3g}"


def speed_text(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def seconds_text(value: float | None) -> str:
    """A duration, to the digit that matters: 12 ms, 1.31 s, 2 min 05 s, 1 h 03 min."""
    if value is None:
        return NOTHING
    if value < 0.9995:
        milliseconds = value * 1000
        return f"{milliseconds:.3g} ms" if milliseconds < 99.5 else f"{milliseconds:.0f} ms"
    if value < 59.5:
        return f"{value:.3g} s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def share_text(value: float | None) -> str:
    return NOTHING if value is None else f"{value * 100:.3g} %" if value < 0.1 else f"{value * 100:.0f} %"


def setting_text(value: Setting | None) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value


def settings_text(settings: Mapping[str, Setting]) -> str:
    return ", ".join(f"{name} {setting_text(value)}" for name, value in settings.items()) or NOTHING


def environment_text(environment: Mapping[str, str]) -> str:
    """As a shell takes it in front of a command."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())


def shown_bytes(value: Estimate | None) -> Shown:
    return ABSENT if value is None else Shown(bytes_text(value.value), value.source, _interval(value, bytes_text), value.note)


def shown_speed(value: Estimate | None) -> Shown:
    if value is None:
        return ABSENT
    return Shown(f"{speed_text(value.value)} samples/s", value.source, _interval(value, speed_text), value.note)


def shown_device_peak(peak: PeakEstimate) -> Shown:
    low, high = peak.device_interval_bytes
    interval = f"{bytes_text(low)} to {bytes_text(high)}" if low != high else None
    return Shown(bytes_text(peak.device_bytes), peak.source, interval, peak.interval_basis)


def _interval(value: Estimate, form: object) -> str | None:
    if value.low is None or value.high is None or not callable(form):
        return None
    return f"{form(value.low)} to {form(value.high)}"


def memory_of(peak: PhasePeak | None, memory: str | None = None) -> tuple[str, int] | None:
    """(which memory, bytes) of a peak: `memory` ("device" or "host") where it is there, else the nearest to it."""
    if peak is None:
        return None
    order = ("host", *_DEVICE_FIRST) if memory == "host" else _DEVICE_FIRST
    for name in order:
        value = getattr(peak, f"{name}_bytes")
        if value is not None:
            return name, value
    return None


def source_of(sample: Sample) -> Source:
    """An imaginary card is computed, all else is measured."""
    return Source.PREDICTED if sample.trial.device.kind == "imaginary" else Source.MEASURED


def shown_sample_peak(sample: Sample, memory: str | None = None) -> Shown:
    """The worst rank's peak of one trial, labelled with which memory it is."""
    seen = memory_of(sample.peak, memory)
    if seen is None:
        return ABSENT
    name, value = seen
    note = f"{name} memory"
    if name == "host" and sample.peak is not None and not sample.peak.host_is_true:
        note = "host memory, freed memory that malloc kept included"
    return Shown(bytes_text(value), source_of(sample), None, note)
