"""Keeps a trial's writes out of the user's files."""

from __future__ import annotations

from typing import Any


def keep_out(hub: Any) -> None:
    from brimful_inside.probe.trackers import switch_off_trackers

    switch_off_trackers(hub.orders.folder)
