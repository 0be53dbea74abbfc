from bench.ood_loss import by_turns


def test_both_sides_take_as_many_turns_and_agree():
    results = by_turns(64, 3)
    assert [sorted(row) for row in results["rows"]] == [["plain", "tiled"]] * 3
    assert max(results["largest_difference"].values()) < 1e-5
