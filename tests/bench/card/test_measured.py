from hypothesis import given
from hypothesis import strategies as st

from bench.card.measured import RESOLUTION, edge


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_an_edge_is_found_from_below_and_from_above(start: int, largest: int):
    low, high = edge(lambda size: size <= largest, start)
    assert low is not None and high is not None and low <= largest < high
    assert high - low <= max(1, low // RESOLUTION)
