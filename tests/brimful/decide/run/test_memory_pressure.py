"""Warnings before memory runs out: each once, and again only where there is a new reason."""

from brimful.decide.run.memory_pressure import MemoryPressure
from brimful.values import Heartbeat


def codes(pressure: MemoryPressure, **seen) -> list[str]:
    return [advice.code for advice in pressure.warnings(Heartbeat("train", 10, 1.0, **seen))]


def test_retries_in_two_steps_running_are_warned_of_once():
    pressure = MemoryPressure()
    seen = [{"retry_streak": streak, "alloc_retries": 4 + streak} for streak in (1, 2, 3)]
    assert [codes(pressure, **retries) for retries in seen] == [[], ["allocator-retries"], []]


def test_a_full_host_is_warned_of_once_until_it_was_emptier_again():
    pressure = MemoryPressure()
    shares = (0.949, 0.95, 0.99, 0.92, 0.97, 0.89, 0.96)
    said = [(share, code) for share in shares for code in codes(pressure, host_used_share=share)]
    assert said == [(share, "host-memory-nearly-full") for share in (0.95, 0.96)]


def test_what_is_not_known_warns_of_nothing():
    assert codes(MemoryPressure()) == []
