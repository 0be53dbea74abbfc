"""Warnings before memory runs out: each once, and again only where there is a new reason."""

from brimful.decide.run.memory_pressure import MemoryPressure
from brimful.values import Heartbeat


def codes(pressure: MemoryPressure, **seen) -> list[str]:
    return [advice.code for advice in pressure.warnings(Heartbeat("train", 10, 1.0, **seen))]


def test_retries_in_two_steps_running_are_warned_of_once():
    pressure = MemoryPressure()
    assert codes(pressure, retry_streak=1, alloc_retries=5) == []
    assert codes(pressure, retry_streak=2, alloc_retries=7) == ["allocator-retries"]
    assert codes(pressure, retry_streak=3, alloc_retries=8) == []


def test_a_full_host_is_warned_of_once_until_it_was_emptier_again():
    pressure = MemoryPressure()
    assert codes(pressure, host_used_share=0.949) == []
    assert codes(pressure, host_used_share=0.95) == ["host-memory-nearly-full"]
    assert codes(pressure, host_used_share=0.99) == []
    assert codes(pressure, host_used_share=0.92) == []
    assert codes(pressure, host_used_share=0.97) == []
    assert codes(pressure, host_used_share=0.89) == []
    assert codes(pressure, host_used_share=0.96) == ["host-memory-nearly-full"]


def test_what_is_not_known_warns_of_nothing():
    assert codes(MemoryPressure()) == []
