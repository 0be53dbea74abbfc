"""The host side of this machine."""

from __future__ import annotations

import os
from types import SimpleNamespace

from brimful.measure.device import host


def test_what_is_free_of_shared_memory_is_no_more_than_there_is(monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_frsize=4096, f_blocks=100, f_bavail=30))
    assert host.shm_bytes() == 409_600 and host.shm_free_bytes() == 122_880


def test_a_machine_without_shared_memory_says_so(monkeypatch):
    def none(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "statvfs", none)
    assert host.shm_bytes() is None and host.shm_free_bytes() is None
