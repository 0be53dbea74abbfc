"""Which samples each step trains on, where they live, and how they get to the device."""

from __future__ import annotations
