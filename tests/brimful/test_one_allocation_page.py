"""The worked example of docs/how/one_allocation.md says what the allocator says."""

import re
from pathlib import Path

from brimful_inside.simulator.allocator import CachingAllocator

ALLOCATED_AT = {
    "the output is freed": "the output is computed",
    "the output's gradient is freed": "its gradient",
}
PAGE = Path(__file__).parents[2] / "docs" / "how" / "one_allocation.md"


def rows_of_the_example() -> list[tuple[str, int, int, int]]:
    """(event, bytes asked for or given back, allocated after, reserved after)."""
    rows = re.findall(
        r"^\| ([^|]+) \| (-?\d+) \| (\d+) \| (\d+) \|$",
        PAGE.read_text(encoding="utf-8"),
        flags=re.MULTILINE,
    )
    return [
        (event, int(asked), int(allocated), int(reserved))
        for event, asked, allocated, reserved in rows
    ]


def test_the_table_is_what_the_allocator_does():
    rows = rows_of_the_example()
    assert len(rows) == 12
    allocator = CachingAllocator()
    addresses: dict[str, int] = {}
    for event, asked, allocated, reserved in rows:
        if asked > 0:
            addresses[event] = allocator.malloc(asked)
        else:
            allocator.free(addresses.pop(ALLOCATED_AT[event]))
        assert (event, allocator.allocated, allocator.reserved) == (event, allocated, reserved)


def test_the_sentences_after_the_table_say_the_same_in_mib():
    _, _, allocated, reserved = rows_of_the_example()[-1]
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"peaks at {allocated / 2**20:.1f} MiB" in text
    assert f"at {reserved / 2**20:.0f} MiB" in text
