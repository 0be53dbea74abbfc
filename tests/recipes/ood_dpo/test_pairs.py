"""Each molecule is paired as often as any other of its class, and no domain of the validation half
is trained on.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import UsageError
from recipes.ood_dpo.pairs import SPLITS, pair_data


def arrays(**sizes: int) -> dict[str, np.ndarray]:
    """A row has its number, and a thousand for each split before its own."""
    lengths = {"train": 7, "iid_val": 3, "iid_test": 4, "ood_val": 12, "ood_test": 5, **sizes}
    return {
        name: np.arange(n, dtype=np.float32)[:, None] + 1000 * SPLITS.index(name)
        for name, n in lengths.items()
    }


def rows(array: np.ndarray) -> list[int]:
    return array[:, 0].astype(int).tolist()


@given(train=st.integers(1, 40), ood=st.integers(2, 40), seed=st.integers(0, 9))
def test_every_molecule_is_in_the_pairs_and_none_twice_as_often_as_it_must(train, ood, seed):
    data = pair_data(arrays(train=train, ood_val=ood), seed)
    assert len(data.train_id) == len(data.train_ood) == data.pairs == max(train, ood // 2)
    for array, there in ((data.train_id, train), (data.train_ood, ood // 2)):
        _, counts = np.unique(array, return_counts=True)
        assert len(counts) == there and counts.max() - counts.min() <= 1
    halves = {*rows(data.train_ood)} | {*rows(data.validation_ood)}
    assert halves == {*rows(arrays(ood_val=ood)["ood_val"])}
    assert not {*rows(data.train_ood)} & {*rows(data.validation_ood)}


def test_the_other_splits_are_taken_as_they_are_and_the_seed_decides_the_rest():
    one, again, other = (pair_data(arrays(), seed) for seed in (0, 0, 1))
    given = arrays()
    assert rows(one.validation_id) == rows(given["iid_val"]) and rows(one.test_ood) == rows(
        given["ood_test"]
    )
    assert rows(one.train_id) == rows(again.train_id) and rows(one.train_ood) == rows(
        again.train_ood
    )
    assert rows(one.train_ood) != rows(other.train_ood)


@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=12), seed=st.integers(0, 9))
def test_a_domain_is_in_one_half_alone_where_the_halves_are_not_too_uneven(sizes, seed):
    domains = [f"domain {number}" for number, size in enumerate(sizes) for _ in range(size)]
    if len(domains) < 2:
        return
    data = pair_data(arrays(ood_val=len(domains)), seed, domains)
    training = {domains[row - 3000] for row in rows(data.train_ood)}
    validation = {domains[row - 3000] for row in rows(data.validation_ood)}
    if data.halves == "by domain":
        assert not training & validation
        assert 1 / 3 <= len({*rows(data.train_ood)}) / len(domains) <= 2 / 3
    else:
        assert len(sizes) < 12, "twelve domains of at most 8 molecules can always be halved"


@pytest.mark.parametrize("name", SPLITS)
def test_an_empty_split_is_refused_by_name(name):
    with pytest.raises(UsageError, match=f"split {name} has no molecules"):
        pair_data(arrays(**{name: 0}), 0)


def test_a_single_molecule_cannot_be_halved():
    with pytest.raises(UsageError, match="ood_val has 1 molecule"):
        pair_data(arrays(ood_val=1), 0)
