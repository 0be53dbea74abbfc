"""Warnings before memory runs out: each once, and again only where there is a new reason."""

from brimful.decide.run.memory_pressure import MemoryPressure
from brimful.values import Heartbeat


def codes(wall: MemoryPressure, **seen) -> list[str]:
    return [advice.code for advice in wall.tell(Heartbeat("train", 10, 1.0, **seen))]


def test_retries_in_two_steps_running_are_warned_of_once():
    wall = MemoryPressure()
    assert codes(wall, retry_streak=1, alloc_retries=5) == []
    assert codes(wall, retry_streak=2, alloc_retries=7) == ["allocator-retries"]
    assert codes(wall, retry_streak=3, alloc_retries=8) == []


def test_a_full_host_is_warned_of_once_until_it_was_emptier_again():
    wall = MemoryPressure()
    assert codes(wall, host_used_share=0.949) == []
    assert codes(wall, host_used_share=0.95) == ["host-memory-nearly-full"]
    assert codes(wall, host_used_share=0.99) == []
    assert codes(wall, host_used_share=0.92) == []
    assert codes(wall, host_used_share=0.97) == []
    assert codes(wall, host_used_share=0.89) == []
    assert codes(wall, host_used_share=0.96) == ["host-memory-nearly-full"]


def test_what_is_not_known_warns_of_nothing():
    assert codes(MemoryPressure()) == []
