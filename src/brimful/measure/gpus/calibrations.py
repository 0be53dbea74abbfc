"""Cards that `brimful doctor --calibrate` measured on this machine.

One JSON file a card, in ``cards`` of BRIMFUL_HOME where that is set, else of the user's
configuration (``~/.config/brimful``).
"""

import json
import os
import platform
import re
from dataclasses import asdict, replace
from pathlib import Path

from brimful.errors import HOME_VARIABLE, NoSuchDevice, not_writable
from brimful.measure.gpus.find import custom_gpu, find_gpu
from brimful.values import Calibration, Estimate, Gpu, Source

SCHEMA = 1


def folder_of(home: Path | str | None = None) -> Path:
    """Where calibrations lie."""
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config") / "brimful"
    return Path(home or os.environ.get(HOME_VARIABLE) or configuration).expanduser() / "cards"


def keep(calibration: Calibration, home: Path | str | None = None) -> Path:
    """Writes it, over an earlier one of the same card. Raises UsageError where nothing can be
    written.
    """
    text = json.dumps({"schema": SCHEMA, **asdict(calibration)}, indent=1) + "\n"
    return write_kept(_path_of(calibration.name, home), text.encode(), "The calibration")


def write_kept(path: Path, content: bytes, what: str) -> Path:
    """Whole or not at all. Raises UsageError, which names `what`, where nothing can be written."""
    new = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(content)
        new.replace(path)
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
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("schema", None) != SCHEMA:
            return None
        raw["capability"] = tuple(raw["capability"])
        return Calibration(**raw)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
