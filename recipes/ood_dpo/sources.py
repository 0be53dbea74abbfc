"""Rows of molecules as files have them: DrugOOD's JSON, a CSV, and MoleculeACE's 30 targets out of
its wheel.
"""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from brimful.errors import UsageError, nearest
from recipes.common.cache import Say, cache_folder
from recipes.common.wheels import Wheel
from recipes.ood_dpo.settings import DatasetOptions

SPLITS = ("train", "iid_val", "iid_test", "ood_val", "ood_test")
# the first one that a CSV has holds; HIV_active is MoleculeNet's HIV, which GOOD splits
COLUMNS = {
    "smiles": ("smiles", "SMILES", "mol"),
    "label": ("cls_label", "label", "HIV_active", "activity", "y"),
    "domain": ("domain_id", "assay_id", "target"),
    "split": (),
}
MOLECULEACE = Wheel(
    "MoleculeACE", "3.0.0", "c2028c9a75281eab53d3b3e7dc11cbc8ac970d008bac4a0d3927f11ac2024bdc"
)
TARGETS = "MoleculeACE/Data/benchmark_data/"


@dataclass(frozen=True)
class Row:
    """`place` is where it stands, for messages. `label` is nan, `domain` and `split` are None where
    the file has none.
    """

    place: str
    smiles: str
    label: float
    domain: str | None
    split: str | None


def read_rows(options: DatasetOptions, say: Say) -> list[Row]:
    """All rows of a data set. Raises UsageError that names the file and the row, column or split."""
    dataset = options.dataset
    if not dataset:
        raise UsageError(
            "--dataset is missing: there are no molecules.",
            suggestion="Try --dataset moleculeace:CHEMBL204_Ki.",
        )
    kind, _, target = dataset.partition(":")
    if kind.lower() == "moleculeace":
        return _moleculeace(target, options, say)
    path = Path(dataset)
    reader = {".json": _drugood, ".csv": _csv_file}.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            f"--dataset {dataset} is no data set.",
            suggestion="Name a .json, a .csv or moleculeace:TARGET.",
        )
    try:
        return reader(path, options)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", suggestion="Name a file that is there."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is no UTF-8 ({error.reason}, byte {error.start + 1:,})."
        ) from error


def _drugood(path: Path, options: DatasetOptions) -> list[Row]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path} is no JSON: {error}.", suggestion="Download it again.") from error
    splits = content.get("split", content) if isinstance(content, dict) else None
    if not isinstance(splits, dict):
        raise UsageError(
            f"{path} has no splits.", "DrugOOD's files have an object of them, under `split`."
        )
    missing = [name for name in SPLITS if name not in splits]
    if missing:
        raise UsageError(
            f"{path} has no split {', '.join(missing)}; it has "
            f"{', '.join(map(str, splits)) or 'none'}."
        )
    return [
        _item(item, name, f"{path}, {name}, item {number:,}", options)
        for name in SPLITS
        for number, item in enumerate(_listed(splits[name], path, name), 1)
    ]


def _listed(items: Any, path: Path, name: str) -> list[Any]:
    if not isinstance(items, list):
        raise UsageError(f"{path}: {name} is no list of molecules.")
    return items


def _item(item: Any, split: str, place: str, options: DatasetOptions) -> Row:
    if not isinstance(item, dict) or not isinstance(item.get("smiles"), str):
        raise UsageError(
            f"{place}: it has no text `smiles`.",
            "DrugOOD's items have smiles, cls_label and domain_id.",
        )
    column = options.label_column or "cls_label"
    if column != "none" and column not in item:
        raise UsageError(
            f"{place}: it has no {column}.",
            suggestion="--label-column names another; none: there are no labels.",
        )
    label = math.nan if column == "none" else _number(item[column], place, column)
    domain = item.get("domain_id")
    return Row(place, item["smiles"], label, None if domain is None else str(domain), split)


def _csv_file(path: Path, options: DatasetOptions) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(_of_csv(file, str(path), options))


def _of_csv(file: TextIO, name: str, options: DatasetOptions) -> Iterator[Row]:
    reader = csv.DictReader(file)
    header = reader.fieldnames or ()
    asked = {
        "smiles": options.smiles_column,
        "label": options.label_column,
        "domain": options.domain_column,
        "split": options.split_column,
    }
    columns = {what: _column(what, asked[what], header, name) for what in COLUMNS}
    try:
        for row in reader:
            yield _csv_row(row, columns, f"{name}, line {reader.line_num:,}")
    except csv.Error as error:
        raise UsageError(
            f"{name}, line {reader.line_num:,}: {error}.", suggestion="Mend the file."
        ) from error


def _column(what: str, asked: str | None, header: Sequence[str], name: str) -> str | None:
    if what == "label" and asked == "none":
        return None
    names = (asked,) if asked else COLUMNS[what]
    found = next((one for one in names if one in header), None)
    if found is None and (asked or what in ("smiles", "label")):
        has = ", ".join(header) or "none"
        ask = f"Name it with --{what}-column." + (
            " none: the molecules have no labels." if what == "label" else ""
        )
        raise UsageError(
            f"{name} has no column {' or '.join(names)}; it has {has}.", suggestion=ask
        )
    return found


def _csv_row(row: Mapping[str, str | None], columns: Mapping[str, str | None], place: str) -> Row:
    values = {what: None if column is None else row.get(column) for what, column in columns.items()}
    smiles, split, column = values["smiles"], values["split"], columns["label"]
    if smiles is None or not smiles.strip():
        raise UsageError(f"{place}: there is no SMILES.", suggestion="Mend or remove the line.")
    if columns["split"] is not None and split not in SPLITS:
        raise UsageError(
            f"{place}: {split!r} is no split.", suggestion=f"The splits are {', '.join(SPLITS)}."
        )
    label = math.nan if column is None else _number(values["label"], place, column)
    return Row(place, smiles.strip(), label, values["domain"], split)


def _number(value: Any, place: str, column: str) -> float:
    """nan where a molecule was not measured: null, or an empty cell."""
    if value is None or value == "":
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.inf
    if math.isinf(number):
        raise UsageError(
            f"{place}: {column} is {str(value)[:40]!r} and no number.",
            "A label is a number, and no molecule is left out for its label.",
            "Mend it, or name another column with --label-column (none: there are no labels).",
        )
    return number


def _moleculeace(target: str, options: DatasetOptions, say: Say) -> list[Row]:
    """Its own split (train, test) is one at random: not used. A target is a domain where all are
    asked for.
    """
    wheel = MOLECULEACE.fetch(cache_folder("ood_dpo") / "wheels", say)
    with zipfile.ZipFile(wheel) as archive:
        names = [
            n.removeprefix(TARGETS).removesuffix(".csv")
            for n in archive.namelist()
            if n.startswith(TARGETS)
        ]
        targets = sorted(name for name in names if "__init__" not in name)
        if target != "all" and target not in targets:
            close = nearest(target, targets)
            raise UsageError(
                f"MoleculeACE has no target {target!r}.",
                suggestion=f"Nearest: {', '.join(close)}."
                if close
                else f"Its targets are {', '.join(targets)}.",
            )
        rows = []
        for one in targets if target == "all" else [target]:
            with (
                archive.open(f"{TARGETS}{one}.csv") as binary,
                io.TextIOWrapper(binary, "utf-8", newline="") as file,
            ):
                read = _of_csv(
                    file,
                    f"MoleculeACE's {one}.csv",
                    DatasetOptions(label_column=options.label_column),
                )
                rows += [
                    Row(row.place, row.smiles, row.label, one if target == "all" else None, None)
                    for row in read
                ]
    return rows
