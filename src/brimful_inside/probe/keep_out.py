"""Keeps a trial's writes out of the user's files, and its numbers out of the user's trackers."""

from __future__ import annotations

from typing import Any

from brimful_inside.probe.files import put_under_python
from brimful_inside.probe.overlay import Overlay
from brimful_inside.probe.trackers import switch_off_trackers
from brimful_inside.probe.writers import redirect_writers


def keep_out(hub: Any) -> None:
    """Called before the script's first line. What Python writes is seen by `files`; what C++ and Rust write, by `writers`."""
    switch_off_trackers(hub.orders.folder)
    hub.overlay = Overlay(hub.orders.folder)
    put_under_python(hub.overlay)
    redirect_writers(hub)
