"""Which device a verb works on, and what it may use of it."""

import pytest

from brimful.errors import UsageError
from brimful.measure.device.accelerators import Accelerator
from brimful.values import Device
from brimful.verbs.devices import budget_for

GIB = 1 << 30
DEVICE = Device("accelerator", "cuda:0")
SHARED = Accelerator(0, "cuda", "A card", 80 * GIB, 40 * GIB, others_bytes=39 * GIB)


@pytest.mark.parametrize(("text", "own"), [("90%", 36), ("20GiB", 20), (None, 36)])
def test_what_other_processes_hold_is_part_of_the_peak_and_so_of_the_budget(text, own):
    budget = budget_for(DEVICE, SHARED, text)
    assert (budget.bytes, budget.free_bytes, budget.memory) == ((own + 39) * GIB, 40 * GIB, "device")
    assert "39.0 GiB that other processes hold" in budget.why


def test_a_card_of_ones_own_has_the_share_of_it():
    budget = budget_for(DEVICE, Accelerator(0, "cuda", "A card", 80 * GIB, 80 * GIB), "50%")
    assert budget.bytes == 40 * GIB and "other" not in budget.why


def test_no_more_can_be_allowed_than_others_leave():
    with pytest.raises(UsageError, match=r"60\.0 GiB"):
        budget_for(DEVICE, SHARED, "60GiB")
