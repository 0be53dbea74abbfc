"""Parsing what people type and formatting what they read. GB is 10**9 bytes and GiB is 2**30; both
are understood.

Every parser raises `UsageError` with a sentence that quotes what was typed and says what would be
right.
"""

import math
import re
from collections.abc import Callable

from brimful.errors import UsageError

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
LARGEST_BATCH_SIZE = 10**9  # more samples than any loader puts into one batch

_BYTE_UNITS = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "k": KIB,
    "kb": 10**3,
    "kib": KIB,
    "m": MIB,
    "mb": 10**6,
    "mib": MIB,
    "g": GIB,
    "gb": 10**9,
    "gib": GIB,
    "t": TIB,
    "tb": 10**12,
    "tib": TIB,
}
_NUMBER = r"([0-9][0-9_,]*\.?[0-9]*(?:e[0-9]+)?|\.[0-9]+)"
_SIZE = re.compile(_NUMBER + r"\s*([a-z]*)", re.IGNORECASE)
_DURATION_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(ms|min|[smhd])", re.IGNORECASE)
_DURATION_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SHOWN_UNITS = {"TiB": TIB, "GiB": GIB, "MiB": MIB, "KiB": KIB}
_UNITS = {**_SHOWN_UNITS, "bytes": 1, "byte": 1, "s": 1, "ms": 1e-3, "µs": 1e-6}
# what steers a terminal (ECMA-48), and other characters that show nothing
_STEERING = re.compile(
    r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_])"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_SIZE_HELP = "Write it as 20GiB (20 x 1024^3 bytes), 20GB (20 x 1000^3 bytes) or 500MiB."


def parse_bytes(text: str) -> int:
    """Bytes from "20GiB", "20 GB", "500MB", "1.5g", "1024". A bare g is GiB, as in Docker and
    Slurm.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _BYTE_UNITS:
        raise UsageError(f"{text!r} is no amount of memory.", suggestion=_SIZE_HELP)
    number = match.group(1).replace(",", "").replace("_", "")
    factor = _BYTE_UNITS[unit or ""]
    amount = float(number) * factor
    if not math.isfinite(amount) or amount >= 2**60:
        raise UsageError(f"{text!r} is more memory than any machine has.", suggestion=_SIZE_HELP)
    bytes_ = int(number) * factor if number.isdigit() else round(amount)
    if bytes_ <= 0:
        raise UsageError(f"{text!r} is no memory at all.", suggestion=_SIZE_HELP)
    return bytes_


def parse_budget(text: str, free_bytes: int) -> int:
    """Bytes: an amount as `parse_bytes` takes it, or a share of `free_bytes` such as "90%"."""
    text = text.strip()
    if not text.endswith("%"):
        return parse_bytes(text)
    value = parse_per_cent(text)
    if not 0 < value <= 1:
        raise UsageError(
            f"{text!r} is no share of the memory.",
            suggestion="Write a percentage above 0% and up to 100%, as in 90%.",
        )
    return int(value * free_bytes)


def parse_per_cent(text: str) -> float:
    """The share that "90 %" is; not-a-number for what is none, and for one below zero."""
    number = _number(text.strip().removesuffix("%"))
    return number / 100 if 0 <= number < math.inf else math.nan


def parse_batch_size(text: str) -> int:
    """A batch size: a whole number of samples, from 1 up to a thousand million."""
    suggestion = "A batch size is a whole number of samples, 1 or more."
    value = _number(text)
    if not value.is_integer():
        problem = "is not a whole number"
    elif value < 1:
        problem = "is too small"
    elif value > LARGEST_BATCH_SIZE:
        problem = "is more than any data set can fill"
        suggestion = f"Give at most {LARGEST_BATCH_SIZE:,}."
    else:
        return int(value)
    raise UsageError(f"The batch size {text!r} {problem}.", suggestion=suggestion)


def _number(text: str) -> float:
    """Not-a-number where it is none."""
    try:
        return float(text.strip().replace("_", "").replace(",", ""))
    except ValueError:
        return math.nan


def parse_duration(text: str) -> float:
    """Seconds from "90", "90s", "250ms", "10m", "1h30m", "1.5h"."""
    plain = text.strip()
    seconds = _number(plain) if re.fullmatch(_NUMBER, plain) else math.nan
    parts = _DURATION_PART.findall(plain)
    if parts and not _DURATION_PART.sub("", plain).strip():
        seconds = sum(float(number) * _DURATION_UNITS[unit.lower()] for number, unit in parts)
    if not 0 < seconds < math.inf:
        raise UsageError(
            f"{text!r} is no length of time.", suggestion="Write it as 90s, 10m or 1h30m."
        )
    return seconds


def parse_link(text: str) -> float:
    """Bytes per second of "400Gb", "100GbE" (bits) or "50GB/s". Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(Gb|GbE|Gbit|Gbps|Gb/s|Gbit/s|GB/s)", text.strip())
    if match is None or not 0 < float(match[1]) < math.inf:
        raise UsageError(
            f"{text!r} is no speed of a network",
            "it is what each card can send to other machines in a second",
            "write it in bits, as 400Gb or 100GbE, or in bytes, as 50GB/s",
        )
    return float(match[1]) * 1e9 / (1 if match[2] == "GB/s" else 8)


def parse_setting(text: str) -> int | float | str | bool:
    """A setting's value as a command would mean it: a whole number, a number, true or false, else
    the text itself.
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else text
    return text


def format_bytes(value: float, digits: int = 3) -> str:
    """Bytes with `digits` significant figures in the unit that reads best: "38.3 GiB", "512 MiB",
    "0 bytes".
    """
    if value < 0:
        return "-" + format_bytes(-value, digits)
    for unit, size in _SHOWN_UNITS.items():
        # 1023.9 MiB would be written "1024 MiB" with few digits, so the next unit starts a little
        # early
        if value >= size * (1 - 0.5 * 10.0**-digits):
            return f"{_significant(value / size, digits)} {unit}"
    return "1 byte" if round(value) == 1 else f"{round(value)} bytes"


def format_interval(
    low: float, high: float, value: float, as_text: Callable[[float], str] = format_bytes
) -> str:
    """ "12.1 to 12.9 GiB", "0.771 to 4.69 ms", around `value`: both ends in its unit, or one number
    where they read the same. `as_text` writes the value; an end as well, where it takes two units.
    """
    unit = as_text(value).split(" ", 1)[1]
    size = _UNITS.get(unit)
    ends = (_significant(end / size, 3) if size else as_text(end) for end in (low, high))
    return " to ".join(dict.fromkeys(ends)) + (f" {unit}" if size else "")


def format_duration(seconds: float) -> str:
    """ "350 µs", "12 ms", "2.35 s", "45 s", "3 min 20 s", "1 h 05 min"."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{_significant(seconds * 1e6, 3)} µs"
    if seconds < 0.9995:
        return f"{_significant(seconds * 1e3, 3)} ms"
    if seconds < 59.95:
        return f"{_significant(seconds, 3)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def format_rate(samples_per_s: float) -> str:
    """Samples per second with three significant figures: "316 samples/s", "3.21 samples/s", "12,400
    samples/s".
    """
    return f"{_significant(samples_per_s, 3)} samples/s"


def format_share(share: float) -> str:
    """A part as per cent: "52 %", "3.5 %", "0.2 %"; never "0 %" for more than nothing."""
    per_cent = share * 100
    if per_cent != 0 and abs(per_cent) < 0.05:
        return "under 0.1 %"
    return f"{per_cent:.0f} %" if abs(per_cent) >= 9.95 else f"{round(per_cent, 1):g} %"


def noun_of(setting: str) -> str:
    """What a setting is called in a sentence: "batch size", and any other by its own name."""
    return "batch size" if setting == "batch_size" else setting


def without_numbers(path: str) -> str:
    """What modules have in common whose paths differ in their numbers: "blocks.*.mlp.*"."""
    return re.sub(r"(?<![^. ])\d+(?=\.|$)", "*", path)


def printable(text: str, kept: str = "") -> str:
    """Text of a script, a record or a file as it may reach a terminal: without what steers one.
    Line ends and tabs stay, and the characters in `kept`.
    """
    return _STEERING.sub(lambda hit: hit[0] if hit[0] in kept else "", text)


def counted(count: int, singular: str, several: str = "") -> str:
    """ "1 step", "2 steps", "3,000 batches": a number with its noun, whose plural takes an s unless
    it is given.
    """
    return f"{count:,} {singular if count == 1 else several or singular + 's'}"


def _significant(value: float, digits: int) -> str:
    """`digits` significant figures without an exponent; whole figures before the point are never
    dropped silently.
    """
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))  # 9.996 became 10.0
    return f"{rounded:,.{max(0, decimals)}f}"
