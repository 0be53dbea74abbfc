"""Cards that `brimful doctor --calibrate` measured on this machine.

One JSON file a card, in ``cards`` of BRIMFUL_HOME where that is set, else of the user's
configuration (``~/.config/brimful``).
"""

import errno
import json
import os
import platform
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from brimful import files
from brimful.errors import HOME_VARIABLE, NoSuchDevice, UsageError, not_writable
from brimful.measure.gpus.find import custom_gpu, find_gpu
from brimful.values import Calibration, Estimate, Gpu, Source

SCHEMA = 1
_LARGEST = 1 << 50  # bytes: more than any card has
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def folder_of(home: Path | str | None = None) -> Path:
    """Where calibrations lie."""
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "brimful"
    place = home or os.environ.get(HOME_VARIABLE) or configuration
    return Path(os.path.expanduser(place)) / "cards"


def keep(calibration: Calibration, home: Path | str | None = None) -> Path:
    """Writes it, over an earlier one of the same card. Raises UsageError where nothing can be
    written.
    """
    text = json.dumps({"schema": SCHEMA, **asdict(calibration)}, indent=1) + "\n"
    return write_kept(_path_of(calibration.name, home), text.encode(), "The calibration")


def write_kept(path: Path, content: bytes, what: str) -> Path:
    """Whole or not at all. Raises UsageError, which names `what`, where nothing can be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace(path, content)
    except OSError as error:
        raise not_writable(f"{what} cannot be kept at {path}", error) from error
    return path


def find_calibrated(name: str, home: Path | str | None = None) -> Gpu:
    """The catalogue's card called `name`, with what was measured of it here; or one that was
    measured and the catalogue lacks.

    Raises NoSuchDevice with the nearest names.
    """
    try:
        return calibrated(find_gpu(name), home)
    except NoSuchDevice:
        calibration = _read(_path_of(name, home))
        if calibration is None:
            raise
        gpu = replace(
            custom_gpu(calibration.total_bytes, calibration.name),
            capability=calibration.capability[:2],
            multiprocessors=calibration.multiprocessors,
        )
        return with_calibration(gpu, calibration)


def calibrated(gpu: Gpu, home: Path | str | None = None) -> Gpu:
    """`gpu` with what was measured of it here, if anything was: context, cuDNN's share, usable
    memory, rates reached.
    """
    calibration = _read(_path_of(gpu.name, home))
    return gpu if calibration is None else with_calibration(gpu, calibration)


def with_calibration(gpu: Gpu, calibration: Calibration) -> Gpu:
    """`gpu` with what `calibration` measured of it."""
    here = "this machine" if calibration.hostname == platform.node() else calibration.hostname
    versions = ", ".join(
        f"{name} {version}" for name, version in calibration.versions.items() if version
    )
    note = f"context measured on {calibration.date} on {here} ({versions})"

    def measured(value: int) -> Estimate:
        return Estimate(value, Source.MEASURED, note=note)

    return replace(
        gpu,
        total_bytes=measured(calibration.total_bytes),
        context_bytes=measured(calibration.context_bytes),
        cudnn_bytes=measured(calibration.cudnn_bytes),
        calibration=note,
        reached=dict(calibration.rates),
    )


def _path_of(name: str, home: Path | str | None) -> Path:
    try:
        plain = find_gpu(name).key
    except NoSuchDevice:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return folder_of(home) / f"{plain}.json"


def _read(path: Path) -> Calibration | None:
    """None where there is no such file. Raises UsageError for one whose content makes no sense."""
    try:
        raw = json.loads(files.read(path, follows_links=True).decode())
        wrong = _wrong_fields(raw)
        if not wrong:
            return Calibration(**{**raw, "capability": tuple(raw["capability"])})
        problem = f"{wrong[0]} is {raw.get(wrong[0], 'missing')!r}"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno in _ABSENT:
            return None
        problem = str(error)
    raise UsageError(
        f"the calibration in {path} cannot be used: {problem}",
        "it is damaged, or another version of brimful wrote it",
        "remove that file; on the card's machine, `brimful doctor --calibrate` writes it anew",
    )


def _wrong_fields(raw: dict[str, Any]) -> list[str]:
    """Of a calibration as JSON: those without a value of the right type and of a possible size."""

    def number(value: Any, low: float = 0, high: float = _LARGEST) -> bool:
        return type(value) in (int, float) and low <= value <= high

    def numbers(name: str, kind: type, low: float = 0, high: float = _LARGEST) -> bool:
        values = raw.get(name)
        parts = values.values() if isinstance(values, dict) else values
        return isinstance(values, kind) and all(number(part, low, high) for part in parts or ())

    total, others = raw.get("total_bytes"), raw.get("others_bytes")
    is_right = {
        "schema": raw.pop("schema", None) == SCHEMA,
        "capability": numbers("capability", list, 0, 99) and len(raw["capability"]) >= 2,
        "multiprocessors": number(raw.get("multiprocessors"), 1, 10_000),
        "total_bytes": number(total, 1 << 20),
        "context_bytes": number(total) and number(raw.get("context_bytes"), 0, total or 0),
        "cudnn_bytes": number(total) and number(raw.get("cudnn_bytes"), 0, total or 0),
        "stages_bytes": numbers("stages_bytes", dict),
        "others_bytes": others is None or number(others),
        "rates": numbers("rates", dict, 1e-12, 1e18),
        "versions": isinstance(raw.get("versions"), dict),
        **{name: isinstance(raw.get(name), str) for name in ("name", "hostname", "date")},
    }
    return [name for name, right in is_right.items() if not right]
