"""Each molecule is paired as often as any other of its class, and no domain of the validation half
is trained on.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import UsageError
from recipes.ood_dpo.pairs import SPLIT_OF, SPLITS, pair_data


def arrays(**sizes: int) -> dict[str, np.ndarray]:
    """A row has its number, and a thousand for each split before its own."""
    lengths = {"train": 7, "iid_val": 3, "iid_test": 4, "ood_val": 12, "ood_test": 5, **sizes}
    return {
        name: np.arange(n, dtype=np.float32)[:, None] + 1000 * SPLITS.index(name)
        for name, n in lengths.items()
    }


@given(train=st.integers(1, 40), ood=st.integers(2, 40), seed=st.integers(0, 9))
def test_every_molecule_is_in_the_pairs_and_none_twice_as_often_as_it_must(train, ood, seed):
    data = pair_data(arrays(train=train, ood_val=ood), seed)
    assert data.pairs == max(train, ood // 2)
    for part, there in (("train_id", train), ("train_ood", ood // 2)):
        assert len(data.rows[part]) == data.pairs
        _, counts = np.unique(data.rows[part], return_counts=True)
        assert len(counts) == there and counts.max() - counts.min() <= 1
    training, validation = {*data.rows["train_ood"]}, {*data.rows["validation_ood"]}
    assert training | validation == {*range(ood)} and not training & validation


def test_the_other_splits_are_taken_as_they_are_and_the_seed_decides_the_rest():
    one, again, other = (pair_data(arrays(), seed) for seed in (0, 0, 1))
    for part in ("validation_id", "test_id", "test_ood"):
        assert np.array_equal(one.features(part), arrays()[SPLIT_OF[part]])
    for part in SPLIT_OF:
        assert np.array_equal(one.rows[part], again.rows[part])
    assert one.rows["train_ood"].tolist() != other.rows["train_ood"].tolist()


@given(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=12), seed=st.integers(0, 9))
def test_a_domain_is_in_one_half_alone_where_the_halves_are_not_too_uneven(sizes, seed):
    domains = [f"domain {number}" for number, size in enumerate(sizes) for _ in range(size)]
    if len(domains) < 2:
        return
    data = pair_data(arrays(ood_val=len(domains)), seed, domains)
    training, validation = (
        {domains[row] for row in data.rows[part]} for part in ("train_ood", "validation_ood")
    )
    if data.halves == "by domain":
        assert not training & validation
        assert 1 / 3 <= len({*data.rows["train_ood"]}) / len(domains) <= 2 / 3
    else:
        assert len(sizes) < 12, "twelve domains of at most 8 molecules can always be halved"


def test_a_split_that_cannot_be_halved_is_refused_by_name():
    with pytest.raises(UsageError, match="ood_val has 1 molecule"):
        pair_data(arrays(ood_val=1), 0)
