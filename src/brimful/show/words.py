"""How values are put into words: numbers with their units and sources, outcomes, settings. For every view alike."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from brimful.units import format_bytes, format_bytes_interval, format_count, format_duration, format_rate, format_share
from brimful.values import Estimate, PeakEstimate, PhasePeak, Setting, Source, TrialResult

NOTHING = "–"

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
    return format_count(int(value)) if float(value).is_integer() else f"{value:,.3g}"


def speed_text(value: float | None) -> str:
    """Samples per second without the unit, for where it stands beside."""
    return NOTHING if value is None else format_rate(value).removesuffix(" samples/s")


def seconds_text(value: float | None) -> str:
    return NOTHING if value is None else format_duration(value)


def share_text(value: float | None) -> str:
    return NOTHING if value is None else format_share(value)


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
    if value is None:
        return ABSENT
    return Shown(bytes_text(value.value), value.source, bytes_interval_text(value.low, value.high), value.note)


def shown_speed(value: Estimate | None) -> Shown:
    if value is None:
        return ABSENT
    known = value.low is not None and value.high is not None
    interval = f"{speed_text(value.low)} to {speed_text(value.high)}" if known else None
    return Shown(format_rate(value.value), value.source, interval, value.note)


def shown_device_peak(peak: PeakEstimate) -> Shown:
    return Shown(
        bytes_text(peak.device_bytes), peak.source, bytes_interval_text(*peak.device_interval_bytes), peak.interval_basis
    )


def bytes_interval_text(low: float | None, high: float | None) -> str | None:
    """ "14.5 to 15.2 GiB", or None where there is no interval or both ends read the same."""
    if low is None or high is None:
        return None
    text = format_bytes_interval(low, high)
    return text if " to " in text else None


def memory_of(peak: PhasePeak | None, memory: str | None = None) -> tuple[str, int] | None:
    """(which memory, bytes) of a peak: `memory` ("device", "reserved" or "host") where it is there, else the nearest to it."""
    if peak is None:
        return None
    order = (memory, *_DEVICE_FIRST) if memory is not None else _DEVICE_FIRST
    for name in order:
        value = getattr(peak, f"{name}_bytes")
        if value is not None:
            return name, value
    return None


def approximation_text(name: str, count: int) -> str:
    """How often something stood in for what only data or a card can tell (docs/imaginary.md)."""
    times = f"{name}, {count:,} ×"
    return times + {
        "torch.compile": ": not compiled here; compiled code takes less as a rule",
        "bincount": ": its length depends on data, and the least was taken",
        "cudnn workspace without benchmark": ": assumed to be as large as it was measured with it",
        "cudnn rnn reserve space": ": its size is not documented, and assumed",
        "nested tensors in TransformerEncoder": ": padded tensors were taken, which are larger",
    }.get(name, ": an upper bound of a shape that only data can tell")


def source_of(sample: TrialResult) -> Source:
    """An imaginary card is computed, all else is measured."""
    return Source.PREDICTED if sample.trial.device.kind == "imaginary" else Source.MEASURED


def shown_sample_peak(sample: TrialResult, memory: str | None = None) -> Shown:
    """The worst rank's peak of one trial; `memory_of` tells which memory it is."""
    seen = memory_of(sample.peak, memory)
    if seen is None or sample.peak is None:
        return ABSENT
    kept = seen[0] == "host" and not sample.peak.host_is_true
    return Shown(bytes_text(seen[1]), source_of(sample), None, "with freed memory that was kept" if kept else None)


def how(method: str, exact: bool) -> str:
    """The way a peak was found, in a sentence."""
    if method == "trace":
        return "the command was run as asked on the imaginary card"
    if method == "extrapolated":
        if not exact:
            return "each allocation is a law of the batch size; a further trace was not reproduced exactly"
        return "each allocation is a law of the batch size; a further trace bears it out to the byte where the answer needs it"
    return "a curve through the peaks of trials"


def limited_text(limited_by: str | None) -> str | None:
    """What keeps the batch size from being larger."""
    names = {"budget": "the budget", "dataset": "the length of the dataset", "max_batch_size": "the maximum that was given"}
    return f"limited by {names.get(limited_by, limited_by)}" if limited_by else None
