"""Rows of molecules as files have them: DrugOOD's JSON, a CSV, and MoleculeACE's 30 targets out of
its wheel.
"""

import csv
import io
import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from pandas import DataFrame

from brimful.errors import UsageError, nearest
from recipes.common.cache import Say, cache_folder
from recipes.common.wheels import Wheel
from recipes.ood_dpo.experiments import Frame
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
# in messages, `place` is where a row stands; `label` is nan, `domain` and `split` are None where
# the file has none
ROW = ("place", "smiles", "label", "domain", "split")


def read_rows(options: DatasetOptions, say: Say) -> Frame:
    """All rows of a data set, with the columns of ROW. Raises UsageError that names the file and
    the row, column or split.
    """
    dataset = options.dataset
    if not dataset:
        raise UsageError(
            "--dataset is missing: there are no molecules.",
            suggestion="Try --dataset moleculeace:CHEMBL204_Ki.",
        )
    kind, _, target = dataset.partition(":")
    if kind.lower() == "moleculeace":
        return _frame(_moleculeace(target, options, say))
    path = Path(dataset)
    reader = {".json": _drugood, ".csv": _csv_file}.get(path.suffix.lower())
    if reader is None:
        raise UsageError(
            f"--dataset {dataset} is no data set.",
            suggestion="Name a .json, a .csv or moleculeace:TARGET.",
        )
    try:
        return _frame(reader(path, options))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", suggestion="Name a file that is there."
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} is not UTF-8 ({error.reason}, byte {error.start + 1:,})."
        ) from error


def _frame(rows: Iterable[tuple[Any, ...]]) -> Frame:
    return DataFrame(list(rows), columns=list(ROW)).astype({"label": float})


def _drugood(path: Path, options: DatasetOptions) -> Iterator[tuple[Any, ...]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path} is not JSON: {error}.", suggestion="Download it again."
        ) from error
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
    label = options.label_column or "cls_label"
    columns = {"smiles": "smiles", "domain": "domain_id", "label": label}
    for split in SPLITS:
        if not isinstance(splits[split], list):
            raise UsageError(f"{path}: {split} is not a list of molecules.")
        for number, item in enumerate(splits[split], 1):
            place = f"{path}, {split}, item {number:,}"
            item = item if isinstance(item, dict) else {}
            row = _row(item, columns, place)
            if label not in {*item, "none"}:
                raise UsageError(
                    f"{place}: it has no {label}.",
                    "DrugOOD's items have smiles, cls_label and domain_id.",
                    "--label-column names another; none: there are no labels.",
                )
            yield (*row, split)


def _csv_file(path: Path, options: DatasetOptions) -> Iterator[tuple[Any, ...]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        yield from _of_csv(file, str(path), options)


def _of_csv(file: TextIO, name: str, options: DatasetOptions) -> Iterator[tuple[Any, ...]]:
    reader = csv.DictReader(file)
    header = reader.fieldnames or ()
    columns = {
        kind: _column(kind, getattr(options, f"{kind}_column"), header, name) for kind in COLUMNS
    }
    try:
        for item in reader:
            place = f"{name}, line {reader.line_num:,}"
            split = item[columns["split"]] if columns["split"] else None
            if columns["split"] and split not in SPLITS:
                raise UsageError(
                    f"{place}: {split!r} is not a split.",
                    suggestion=f"The splits are {', '.join(SPLITS)}.",
                )
            filled = {name: value or None for name, value in item.items()}
            yield (*_row(filled, columns, place), split)
    except csv.Error as error:
        raise UsageError(
            f"{name}, line {reader.line_num:,}: {error}.", suggestion="Mend the file."
        ) from error


def _column(kind: str, asked: str | None, header: Sequence[str], name: str) -> str:
    """The column that holds a molecule's `kind`; "none" where the file has none."""
    names = (asked,) if asked else COLUMNS[kind]
    present = [column for column in names if column in header]
    if not present and asked != "none" and (asked or kind in ("smiles", "label")):
        raise UsageError(
            f"{name} has no column {' or '.join(names)}; it has {', '.join(header) or 'none'}.",
            suggestion=f"Name it with --{kind}-column."
            + (" none: the molecules have no labels." if kind == "label" else ""),
        )
    return present[0] if present else ""


def _row(item: Mapping[str, Any], columns: Mapping[str, str], place: str) -> tuple[Any, ...]:
    """All of ROW but the split."""
    smiles, domain = item.get(columns["smiles"]), item.get(columns["domain"])
    if not isinstance(smiles, str):
        raise UsageError(f"{place}: there is no SMILES.", suggestion="Mend or remove the row.")
    label = _number(item.get(columns["label"]), place, columns["label"])
    return place, smiles.strip(), label, None if domain is None else str(domain)


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
            f"{place}: {column} is {str(value)[:40]!r} and not a number.",
            "A label is a number, and no molecule is left out for its label.",
            "Mend it, or name another column with --label-column (none: there are no labels).",
        )
    return number


def _moleculeace(target: str, options: DatasetOptions, say: Say) -> Iterator[tuple[Any, ...]]:
    """Its own split (train, test) is random: not used. Where all targets are asked for, a target
    is a domain.
    """
    wheel = MOLECULEACE.fetch(cache_folder("ood_dpo") / "wheels", say)
    columns = DatasetOptions(label_column=options.label_column)
    with zipfile.ZipFile(wheel) as archive:
        files = [Path(name) for name in archive.namelist() if name.startswith(TARGETS)]
        targets = sorted(file.stem for file in files if file.stem != "__init__")
        if target not in (*targets, "all"):
            close = ", ".join(nearest(target, targets))
            raise UsageError(
                f"MoleculeACE has no target {target!r}.",
                suggestion=f"Nearest: {close}." if close else f"It has {', '.join(targets)}.",
            )
        for name in targets if target == "all" else [target]:
            with archive.open(f"{TARGETS}{name}.csv") as binary:
                file = io.TextIOWrapper(binary, "utf-8", newline="")
                for place, smiles, label, *_ in _of_csv(file, f"MoleculeACE's {name}.csv", columns):
                    yield place, smiles, label, name if target == "all" else None, None
