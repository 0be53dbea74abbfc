"""Keeps a trial's writes out of the user's files, and its numbers out of the user's trackers."""

from __future__ import annotations

from typing import Any

from brimful_inside.probe.sandbox.native_files import redirect_writers
from brimful_inside.probe.sandbox.overlay import Overlay
from brimful_inside.probe.sandbox.python_files import put_under_python
from brimful_inside.probe.trackers import switch_off_trackers


def keep_out(context: Any) -> None:
    """Called before the script's first line. What Python writes is seen by `files`; what C++ and Rust write, by `writers`."""
    switch_off_trackers(context.config.folder)
    context.overlay = Overlay(context.config.folder)
    put_under_python(context.overlay)
    redirect_writers(context)
