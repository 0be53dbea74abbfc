"""Requested against effective: what was asked for, what is in force, and why."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Effective"]


@dataclass(frozen=True)
class Effective:
    """One setting of a training. `requested` is None where nothing was asked."""

    name: str
    requested: object
    effective: object
    why: str
