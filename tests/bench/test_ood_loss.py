import torch

from bench.ood_loss import SIDES, by_turns, most_bytes, of_energies


def test_bytes_are_those_held_at_once_and_not_their_sum():
    def work() -> None:
        for _ in range(5):
            torch.zeros(2**18)

    assert 2**20 <= most_bytes(work) < 2 * 2**20


def test_plain_holds_the_matrix_of_differences_and_tiles_do_not_hold_half_of_it():
    results = {name: most_bytes(of_energies(loss, 2048)) for name, loss in SIDES.items()}
    assert results["plain"] >= 3 * 4 * 2048**2 > 6 * results["tiled"]


def test_both_sides_take_as_many_turns_and_agree():
    results = by_turns(64, 3)
    assert [sorted(row) for row in results["rows"]] == [["plain", "tiled"]] * 3
    assert max(results["largest_difference"].values()) < 1e-5
