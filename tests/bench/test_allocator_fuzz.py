import pytest

from bench import allocator_fuzz as bench


@pytest.mark.parametrize("full", [False, True], ids=["roomy", "nearly full"])
@pytest.mark.parametrize("name", bench.SETTINGS)
def test_both_models_do_the_same(name, full):
    row = bench.run(name, full, 10)
    assert row["events"] > 500 and not row["differences"], row["shortest"]
    assert bool(row["refused"]) == full
