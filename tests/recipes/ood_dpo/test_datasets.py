import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import UsageError
from recipes.ood_dpo.datasets import Dataset, classes, load_dataset
from recipes.ood_dpo.domains import describe
from recipes.ood_dpo.settings import DatasetOptions
from tests.recipes.conftest import Messages
from tests.recipes.ood_dpo.conftest import (
    RINGS,
    SPLITS,
    drugood_items,
    drugood_splits,
    molecule,
    molecules,
    write_csv,
    write_drugood,
)


def load(path: Path | str, **options: Any) -> Dataset:
    return load_dataset(DatasetOptions(dataset=str(path), **options), Messages())


def domains(dataset: Dataset, *names: str) -> set[str]:
    return set(itertools.chain.from_iterable(dataset.splits[name].domains for name in names))


def test_drugoods_json_keeps_its_splits_labels_and_domains(tmp_path: Path):
    for cfg in (True, False):
        dataset = load(write_drugood(tmp_path / "lbap_assay.json", drugood_splits(4), cfg))
        assert dataset.name == "lbap_assay" and tuple(dataset.splits) == SPLITS
        train = dataset.splits["train"]
        assert train.smiles == tuple(molecules(4)) and train.labels.tolist() == [0, 1, 0, 1]
        assert train.labels.dtype == np.float32 and set(train.domains) == {"assay 0"}


def test_a_domain_that_is_asked_for_takes_the_place_of_the_files(tmp_path: Path):
    path = write_drugood(tmp_path / "made.json", drugood_splits(4))
    assert load(path, domain="size").splits["train"].domains == ("7", "8", "9", "10")
    assert load(path, domain="scaffold").splits["train"].domains[:2] == ("c1ccccc1", "C1CCCCC1")


@pytest.mark.parametrize("domain", ["scaffold", "size", "assay"])
@settings(max_examples=25)
@given(
    shape=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 25)), min_size=12, max_size=80, unique=True
    ),
    seed=st.integers(0, 3),
)
def test_each_molecule_is_in_one_split_and_each_domain_on_one_side(
    tmp_path_factory: pytest.TempPathFactory, domain: Any, shape: list[tuple[int, int]], seed: int
):
    rows = [
        [molecule(ring, tail), 5.0 + n, f"assay {tail % 5}"] for n, (ring, tail) in enumerate(shape)
    ]
    path = write_csv(
        tmp_path_factory.mktemp("made") / "made.csv", ["smiles", "y", "assay_id"], rows
    )
    described = {row[0]: describe(row[0], scaffold=True) for row in rows}
    of = {
        "scaffold": lambda row: described[row[0]].scaffold,
        "size": lambda row: str(described[row[0]].heavy_atoms),
        "assay": lambda row: row[2],
    }[domain]
    true = {row[0]: of(row) for row in rows}
    try:
        dataset = load(path, domain=domain, split_seed=seed)
    except UsageError as error:  # then there was really nothing to split
        in_distribution = "in distribution" in error.problem
        assert len(set(true.values())) < 3 or in_distribution, error
        return
    everything = [one for name in SPLITS for one in dataset.splits[name].smiles]
    assert sorted(everything) == sorted(true)
    sides = [
        domains(dataset, "train", "iid_val", "iid_test"),
        domains(dataset, "ood_val"),
        domains(dataset, "ood_test"),
    ]
    assert all(not (a & b) for a, b in itertools.combinations(sides, 2))
    for split in dataset.splits.values():
        assert len(split) and split.domains == tuple(true[one] for one in split.smiles)
        assert len(split.labels) == len(split.domains) == len(split)


def test_of_many_small_domains_the_shares_are_drugoods(tmp_path: Path):
    path = write_csv(
        tmp_path / "made.csv",
        ["smiles", "y"],
        [["C" * n + r, n] for n in range(1, 101) for r in RINGS[:1]],
    )
    dataset = load(path, domain="size")
    assert [len(dataset.splits[name]) for name in SPLITS] == [36, 12, 12, 20, 20]
    sizes = {name: [int(one) for one in dataset.splits[name].domains] for name in SPLITS}
    assert max(sizes["train"]) < min(sizes["ood_val"]) and max(sizes["ood_val"]) < min(
        sizes["ood_test"]
    )


def test_common_scaffolds_are_in_distribution_and_another_seed_cuts_them_otherwise(csv_file: Path):
    first, again, other = (load(csv_file, domain="scaffold", split_seed=seed) for seed in (0, 0, 1))
    assert domains(first, "train") == {RINGS[0]} and RINGS[0] not in domains(
        first, "ood_val", "ood_test"
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert (
        first.splits["ood_test"].smiles == other.splits["ood_test"].smiles
        and first.name == "made-scaffold"
    )
    assert set(first.splits["train"].smiles) != set(other.splits["train"].smiles)


def test_rows_of_one_molecule_stay_together(tmp_path: Path):
    """Written in another way it is the same molecule."""
    rows = [[one, 1] for n in range(1, 30) for one in ("C" * n + "O", "O" + "C" * n)] + [
        [f"{'N' * n}N", 0] for n in range(1, 30)
    ]
    path = write_csv(tmp_path / "made.csv", ["smiles", "label"], rows)
    dataset = load(path, domain="size")
    where = {one: name for name in SPLITS for one in dataset.splits[name].smiles}
    assert all(where["C" * n + "O"] == where["O" + "C" * n] for n in range(1, 30))


def test_a_subsample_is_drawn_from_each_split_by_the_seed(tmp_path: Path, csv_file: Path):
    for path, more in (
        (write_drugood(tmp_path / "made.json", drugood_splits(12)), {}),
        (csv_file, {"domain": "size"}),
    ):
        whole = load(path, **more)
        first, again, other = (
            load(path, subsample=5, split_seed=seed, **more) for seed in (0, 0, 3)
        )
        assert [len(first.splits[name]) for name in SPLITS] == [5] * 5
        assert first.fingerprint == again.fingerprint != other.fingerprint
        assert set(first.splits["ood_test"].smiles) < set(whole.splits["ood_test"].smiles)


def test_invalid_smiles_are_counted_named_and_left_out(tmp_path: Path):
    splits = drugood_splits(4)
    splits["iid_val"][1]["smiles"], splits["ood_test"][0]["smiles"] = "C1CC", ""
    say = Messages()
    dataset = load_dataset(
        DatasetOptions(dataset=str(write_drugood(tmp_path / "made.json", splits))), say
    )
    assert [len(dataset.splits[name]) for name in SPLITS] == [4, 3, 4, 4, 3]
    assert "2 of 20 SMILES" in say.text and "'C1CC'" in say.text and "iid_val, item 2" in say.text


def test_a_molecule_in_two_splits_is_an_error_that_names_it_or_stays_where_it_is_measured(
    tmp_path: Path,
):
    splits = drugood_splits(4)
    splits["train"] += drugood_items(["OCC", *molecules(20)[-2:]])
    splits["iid_val"] += drugood_items(["CCO"])  # the same as OCC
    path = write_drugood(tmp_path / "made.json", splits)
    with pytest.raises(
        UsageError, match=r"3 molecules are in more than one split: .*CCO \(train, iid_val\)"
    ) as caught:
        load(path)
    assert "--shared leave-out" in caught.value.suggestion
    say = Messages()
    dataset = load_dataset(DatasetOptions(dataset=str(path), shared="leave-out"), say)
    assert [len(dataset.splits[name]) for name in SPLITS] == [
        4,
        5,
        4,
        4,
        4,
    ] and "3 of train" in say.text


def test_a_csv_with_its_own_splits_keeps_them(tmp_path: Path):
    rows = [[one, "", name] for one, name in zip(molecules(20), SPLITS * 4, strict=True)]
    path = write_csv(tmp_path / "made.csv", ["mol", "activity", "fold"], rows)
    dataset = load(path, split_column="fold")
    assert dataset.splits["iid_val"].smiles == tuple(molecules(20)[1::5])
    assert np.isnan(
        dataset.splits["train"].labels
    ).all()  # an empty cell is a molecule that was not measured
    path = write_csv(
        tmp_path / "made.csv", ["smiles", "label", "split"], [*rows[:-1], [rows[-1][0], 1, "test"]]
    )
    with pytest.raises(UsageError, match=r"line 21: 'test' is not a split"):
        load(path, split_column="split")


def test_hiv_is_read_by_the_names_of_its_columns(tmp_path: Path):
    rows = [[one, "CI" if n % 3 else "CA", int(not n % 3)] for n, one in enumerate(molecules(60))]
    dataset = load(
        write_csv(tmp_path / "HIV.csv", ["smiles", "activity", "HIV_active"], rows), domain="size"
    )
    assert set(np.unique(dataset.splits["train"].labels)) == {0, 1}


def change(**values: Any) -> Callable[[dict[str, list[Any]]], Any]:
    def apply(splits: dict[str, list[Any]]) -> Any:
        splits["iid_test"][2].update(values)

    return apply


@pytest.mark.parametrize(
    ("mend", "message"),
    [
        (
            lambda splits: splits.pop("ood_val"),
            "has no split ood_val; it has train, iid_val, iid_test, ood_test",
        ),
        (lambda splits: splits["ood_test"].clear(), "ood_test is empty"),
        (lambda splits: splits.update(iid_val={}), "iid_val is not a list of molecules"),
        (change(cls_label="active"), r"iid_test, item 3: cls_label is 'active' and not a number"),
        (change(cls_label="inf"), "not a number"),
        (
            lambda splits: splits["iid_test"][2].pop("cls_label"),
            r"iid_test, item 3: it has no cls_label",
        ),
        (
            lambda splits: splits["train"][0].pop("smiles"),
            r"train, item 1: there is no SMILES",
        ),
        (lambda splits: splits["train"].append("CCO"), r"train, item 5: there is no SMILES"),
        (
            lambda splits: [
                item.update(cls_label=1) for items in splits.values() for item in items
            ],
            "one class only",
        ),
        (
            lambda splits: [item.update(smiles="C1C") for item in splits["iid_val"]],
            "iid_val is empty",
        ),
    ],
)
def test_what_is_wrong_with_a_json_is_said(
    tmp_path: Path, mend: Callable[[dict[str, list[Any]]], Any], message: str
):
    splits = drugood_splits(4)
    mend(splits)
    with pytest.raises(UsageError, match=message):
        load(write_drugood(tmp_path / "made.json", splits))


def numbered(count: int, *more: Any) -> list[list[Any]]:
    return [[smiles, number % 2, *more] for number, smiles in enumerate(molecules(count))]


@pytest.mark.parametrize(
    ("header", "rows", "options", "message"),
    [
        (["smi", "label"], [["CC", 1]], {}, "has no column smiles or SMILES or mol; it has smi"),
        (["smiles", "value"], [["CC", 1]], {}, "has no column cls_label or .*; it has smiles"),
        (["smiles", "label"], [["CC", "high"]], {}, "line 2: label is 'high' and not a number"),
        (["smiles", "label"], [["", 1]], {}, "line 2: there is no SMILES"),
        (["smiles", "label"], [["CC", 1]], {}, "has 1 domain"),
        (["smiles", "label", "assay_id"], numbered(9, "a"), {}, "has 1 domain"),
        (
            ["smiles", "label", "assay_id"],
            [[*row, number] for number, row in enumerate(numbered(3))],
            {},
            "1 molecule would be in distribution",
        ),
        (["smiles", "label"], numbered(9), {"domain": "assay"}, "there is no assay"),
    ],
)
def test_what_is_wrong_with_a_csv_is_said(
    tmp_path: Path, header: list[str], rows: list[list[Any]], options: dict, message: str
):
    with pytest.raises(UsageError, match=message):
        load(write_csv(tmp_path / "made.csv", header, rows), **options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.json", None, "cannot be read: No such file"),
        ("made.xlsx", b"", "is no data set"),
        ("made.json", b"[1, 2", "is not JSON"),
        ("made.json", b"[]", "has no splits"),
        ("made.csv", b"smiles,label\nCC\xff,1\n", "is not UTF-8"),
        ("made.csv", b"", "has no column smiles"),
    ],
)
def test_what_is_no_data_set_is_said(
    tmp_path: Path, name: str, content: bytes | None, message: str
):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load(tmp_path / name)


def test_a_data_set_must_be_named():
    with pytest.raises(UsageError, match="--dataset is missing"):
        load("")


def test_classes_are_labels_of_two_values_or_above_and_below_the_training_median(
    tmp_path: Path, csv_file: Path
):
    two = load(csv_file, domain="size")
    assert all(np.array_equal(made, two.splits[name].labels) for name, made in classes(two).items())
    rows = [[one, "" if n == 3 else n] for n, one in enumerate(molecules(50))]
    several = load(write_csv(tmp_path / "many.csv", ["smiles", "y"], rows), domain="size")
    made, labels = classes(several), {name: split.labels for name, split in several.splits.items()}
    assert abs(made["train"][made["train"] >= 0].mean() - 0.5) < 0.1
    assert all((made[name] == -1).tolist() == np.isnan(labels[name]).tolist() for name in SPLITS)
    assert made["ood_test"].tolist() == [1] * len(
        made["ood_test"]
    )  # the larger ones have the larger labels
