import pytest

torch = pytest.importorskip("torch")

from brimful.integrations.attempts import Memory  # noqa: E402
from tests.brimful.integrations.card import MIB, card  # noqa: E402


def test_a_measurement_may_begin_before_the_card_is_first_used():
    with card(64):
        memory = Memory(torch.device("cuda:0"))
        assert memory.begin() == 64 * MIB
        torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
        assert memory.peak_bytes() == 20 * MIB
