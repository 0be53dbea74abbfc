"""What an hour of a card costs: the defaults beside this file, and the user's own, which `brimful
gpus --prices` keeps.
"""

import tomllib
from pathlib import Path
from typing import Any

from brimful import files
from brimful.errors import BrimfulError, NoSuchDevice, UsageError
from brimful.measure.gpus.calibrations import folder_of, write_kept
from brimful.measure.gpus.find import find_gpu
from brimful.values import Estimate, Source

DEFAULTS = Path(__file__).with_name("prices.toml")
_AS_IN = 'as in l4 = 0.71, or: [l4], below it per_hour = 0.71 and source = "my cloud"'


def prices(home: Path | str | None = None) -> dict[str, Estimate]:
    """US dollars an hour by the key of a card: the user's own where there are some, else the
    defaults, which are assumed.
    """
    kept = _kept_at(home)
    return _read(DEFAULTS) | (_read(kept) if kept.is_file() else {})


def keep(path: Path, home: Path | str | None = None) -> Path:
    """Reads a price file and keeps it for later predictions. Returns where. Raises UsageError for
    one that makes no sense.
    """
    _read(path)
    return write_kept(_kept_at(home), files.read(path, follows_links=True), "The prices")


def _kept_at(home: Path | str | None) -> Path:
    return folder_of(home).with_name("prices.toml")


def _read(path: Path) -> dict[str, Estimate]:
    try:
        raw = tomllib.loads(files.read(path, follows_links=True).decode())
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", suggestion="name a price file that is there"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{path} is no price file: {error}", "prices are written in TOML", _AS_IN
        ) from error
    date = raw.pop("date", None)
    return dict(_price(path, name, value, date) for name, value in raw.items())


def _price(path: Path, name: str, value: Any, date: Any) -> tuple[str, Estimate]:
    """(the card's key, its price). Raises UsageError with the line's own words."""
    try:
        key = find_gpu(name).key
    except NoSuchDevice as error:
        nearest = f"nearest: {', '.join(error.nearest)}; " if error.nearest else ""
        raise _refused(
            path, f"there is no card {name!r}", f"{nearest}`brimful gpus` lists all cards"
        ) from error
    fields = value if isinstance(value, dict) else {"per_hour": value}
    if unknown := sorted(set(fields) - {"per_hour", "source"}):
        raise _refused(path, f"{name}: {unknown[0]!r} is no field of a price", _AS_IN)
    if "per_hour" not in fields:
        raise _refused(path, f"{name}: it has no per_hour", _AS_IN)
    per_hour = fields["per_hour"]
    if type(per_hour) not in (int, float) or not 0 < per_hour < float("inf"):
        raise _refused(
            path, f"{name}: {per_hour!r} is no price", f"US dollars an hour, above 0, {_AS_IN}"
        )
    source = fields.get("source") or (f"{path.name}{f', {date}' if date else ''}")
    return key, Estimate(float(per_hour), Source.ASSUMED, note=str(source))


def _refused(path: Path, problem: str, suggestion: str) -> BrimfulError:
    return UsageError(f"{path}: {problem}", "the file is not used", suggestion)
