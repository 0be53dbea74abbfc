"""The device of a trial, as the probe reads its memory."""

from __future__ import annotations

from typing import Any

from brimful_inside.probe.hub import Hub
from brimful_inside.probe.meters import NoDevice


def device_for(hub: Hub) -> Any:
    return NoDevice()
