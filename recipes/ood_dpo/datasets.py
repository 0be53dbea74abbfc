"""A data set: molecules in five splits, of which three are in distribution and two come of other
domains.

A file that has splits keeps them. Otherwise they are made as DrugOOD makes its own (Ji et al. 2022,
section 3.2): domains in an order go to the in-distribution part until it has 60 % of the molecules,
then half of the rest to `ood_val`, then to `ood_test`; no domain is in two of the three. The
in-distribution part is cut at random, 60 : 20 : 20.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from brimful.errors import UsageError
from brimful.measure.host import cores
from brimful.units import counted
from recipes.common.cache import Say
from recipes.common.running import say as to_standard_error
from recipes.common.workers import Workers
from recipes.ood_dpo.domains import Description, describe
from recipes.ood_dpo.settings import DatasetOptions
from recipes.ood_dpo.sources import SPLITS, Row, read_rows

IN_DISTRIBUTION, TRAIN, VALIDATION = 0.6, 0.6, 0.2  # shares: DrugOOD's
KEPT_FIRST = ("ood_test", "ood_val", "iid_test", "iid_val", "train")
NAMED = 5  # molecules in a message


@dataclass(frozen=True)
class Molecules:
    """One split. `labels` (n,) float32, nan where unknown; `domains`: assay, scaffold's SMILES, or
    heavy atoms of each.
    """

    smiles: tuple[str, ...]
    labels: np.ndarray
    domains: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.smiles)


@dataclass(frozen=True)
class Dataset:
    """`splits` has all five names, none of them empty. `fingerprint` is a digest of the contents."""

    name: str
    splits: Mapping[str, Molecules]
    fingerprint: str


@dataclass(frozen=True)
class Molecule:
    """A row whose SMILES RDKit reads."""

    row: Row
    description: Description
    domain: str


def load_dataset(options: DatasetOptions, say: Say = to_standard_error) -> Dataset:
    """Reads and splits. `say` reports and counts SMILES that RDKit cannot read, which are left out.

    Raises UsageError: a file, column, row or split that is missing or wrong, molecules in two
    splits, one class or domain only.
    """
    rows = read_rows(options, say)
    _check_labels(rows, options)
    given = any(row.split for row in rows)
    if given:
        rows = [
            row
            for name in SPLITS
            for row in _sampled([r for r in rows if r.split == name], name, options)
        ]
    molecules = _described(rows, options, say)
    parts = _given(molecules) if given else _made(molecules, options)
    parts = _apart(parts, options, say)
    if not given:
        parts = {name: _sampled(parts[name], name, options) for name in SPLITS}
    empty = [name for name in SPLITS if not parts[name]]
    if empty:
        raise UsageError(
            f"{options.dataset}: {' and '.join(empty)} is empty.",
            "Each of the five splits is measured or learned from.",
        )
    splits = {name: _molecules(parts[name]) for name in SPLITS}
    stem = options.dataset.partition(":")[2] or Path(options.dataset).stem
    return Dataset(
        f"{stem}-{options.domain}" if options.domain else stem, splits, _fingerprint(splits)
    )


def classes(dataset: Dataset) -> dict[str, np.ndarray]:
    """(n,) int64 of each split: 0 or 1, -1 where unknown. Labels of two values are classes as they
    are; others are, by whether they are above the training molecules' median. Raises UsageError
    where training has one class only."""
    train = dataset.splits["train"].labels
    values = np.unique(train[~np.isnan(train)])
    threshold = (
        float(values.mean() if len(values) == 2 else np.nanmedian(train)) if len(values) else np.nan
    )
    made = {}
    for name, molecules in dataset.splits.items():
        made[name] = np.where(np.isnan(molecules.labels), -1, molecules.labels > threshold).astype(
            np.int64
        )
    if len({0, 1} & set(made["train"].tolist())) < 2:
        raise UsageError(
            f"The training molecules of {dataset.name} are of one class only.",
            "A classifier has nothing to tell apart.",
            "Take more of them, or a method that needs no classes.",
        )
    return made


def _check_labels(rows: Sequence[Row], options: DatasetOptions) -> None:
    known = {row.label for row in rows} - {row.label for row in rows if row.label != row.label}
    if len(known) == 1 and len(rows) > 1:
        raise UsageError(
            f"{options.dataset}: every label is {known.pop():g}, so there is one class only.",
            "A classifier would have nothing to tell apart.",
            "Name another column with --label-column; none: there are no labels.",
        )


def _described(rows: Sequence[Row], options: DatasetOptions, say: Say) -> list[Molecule]:
    domain = options.domain or ("scaffold" if any(row.domain is None for row in rows) else None)
    with Workers(cores()) as workers:
        found = list(
            workers.map(
                partial(describe, scaffold=domain == "scaffold"), [row.smiles for row in rows]
            )
        )
    molecules, invalid = [], []
    for row, description in zip(rows, found, strict=True):
        if description is None:
            invalid.append(f"{row.smiles[:60]!r} ({row.place})")
        else:
            molecules.append(Molecule(row, description, _domain(row, description, domain)))
    if invalid:
        say(
            f"{len(invalid):,} of {len(rows):,} SMILES cannot be read by RDKit and are left out: "
            f"{named(invalid)}."
        )
    return molecules


def _domain(row: Row, description: Description, kind: str | None) -> str:
    if kind == "scaffold":
        return description.scaffold
    if kind == "size":
        return str(description.heavy_atoms)
    if row.domain is None:
        raise UsageError(
            f"{row.place}: there is no assay.",
            suggestion="Name it with --domain-column, or another --domain.",
        )
    return row.domain


def _given(molecules: Sequence[Molecule]) -> dict[str, list[Molecule]]:
    return {name: [one for one in molecules if one.row.split == name] for name in SPLITS}


def _made(molecules: Sequence[Molecule], options: DatasetOptions) -> dict[str, list[Molecule]]:
    """Splits by domain. Small molecules, or common scaffolds and assays, are in distribution; a
    hash orders equals.
    """
    members = defaultdict(list)
    for one in molecules:
        members[one.domain].append(one)
    if len(members) < 3:
        raise UsageError(
            f"{options.dataset} has {counted(len(members), 'domain')}.",
            "Three are the fewest: one in distribution, one for ood_val, one for ood_test.",
            "Choose another --domain (scaffold, size).",
        )
    by_size = options.domain == "size"
    order = sorted(
        members,
        key=lambda d: (
            int(d) if by_size else -len(members[d]),
            hashlib.blake2b(d.encode()).digest(),
        ),
    )
    sizes = np.cumsum([len(members[domain]) for domain in order])
    first = _nearest(sizes, sizes[-1] * IN_DISTRIBUTION, 1, len(order) - 2)
    second = _nearest(sizes, (sizes[first - 1] + sizes[-1]) / 2, first + 1, len(order) - 1)
    taken = {"iid": order[:first], "ood_val": order[first:second], "ood_test": order[second:]}
    parts = {
        name: [one for domain in domains for one in members[domain]]
        for name, domains in taken.items()
    }
    return {**_cut(parts.pop("iid"), options), **parts}


def _nearest(sizes: np.ndarray, wanted: float, least: int, most: int) -> int:
    """How many domains have together nearest to `wanted` molecules."""
    return int(np.clip(np.argmin(np.abs(sizes - wanted)) + 1, least, most))


def _cut(molecules: Sequence[Molecule], options: DatasetOptions) -> dict[str, list[Molecule]]:
    """At random; rows of one molecule stay together."""
    names = sorted({one.description.canonical for one in molecules})
    if len(names) < 3:
        raise UsageError(
            f"{options.dataset}: {counted(len(names), 'molecule')} would be in distribution, for "
            "three splits.",
            suggestion="Give more molecules, or another --domain.",
        )
    np.random.default_rng([options.split_seed, 0]).shuffle(names)
    valid, test = (
        max(1, round(len(names) * share)) for share in (VALIDATION, 1 - TRAIN - VALIDATION)
    )
    side = dict.fromkeys(names, "train") | dict.fromkeys(names[:valid], "iid_val")
    side |= dict.fromkeys(names[valid : valid + test], "iid_test")
    parts: dict[str, list[Molecule]] = {"train": [], "iid_val": [], "iid_test": []}
    for one in molecules:
        parts[side[one.description.canonical]].append(one)
    return parts


def _apart(
    parts: dict[str, list[Molecule]], options: DatasetOptions, say: Say
) -> dict[str, list[Molecule]]:
    """No molecule is in two splits."""
    where: dict[str, list[str]] = defaultdict(list)
    for name in KEPT_FIRST:
        for canonical in {one.description.canonical for one in parts[name]}:
            where[canonical].append(name)
    shared = {canonical: names for canonical, names in sorted(where.items()) if len(names) > 1}
    if not shared:
        return parts
    names_of = named(
        [f"{canonical} ({', '.join(reversed(names))})" for canonical, names in shared.items()]
    )
    some = counted(len(shared), "molecule")
    if options.shared == "error":
        raise UsageError(
            f"{options.dataset}: {some} {'is' if len(shared) == 1 else 'are'} in more than one "
            f"split: {names_of}.",
            "What is measured on a molecule that was learned from shows nothing.",
            "Mend the file, or keep each in the split that is measured alone with --shared "
            "leave-out.",
        )
    left = {
        name: [m for m in parts[name] if where[m.description.canonical][0] == name]
        for name in SPLITS
    }
    lost = Counter({name: len(parts[name]) - len(left[name]) for name in SPLITS})
    counts = ", ".join(f"{count:,} of {name}" for name, count in lost.items() if count)
    say(
        f"{some} in more than one split: {counts} left out; each stays in the split that is "
        "measured."
    )
    return left


def _sampled(items: list, name: str, options: DatasetOptions) -> list:
    if options.subsample is None or len(items) <= options.subsample:
        return items
    chance = np.random.default_rng([options.split_seed, 1, SPLITS.index(name)])
    return [
        items[index]
        for index in sorted(chance.choice(len(items), options.subsample, replace=False))
    ]


def _molecules(part: Sequence[Molecule]) -> Molecules:
    labels = np.array([one.row.label for one in part], dtype=np.float32)
    return Molecules(
        tuple(one.row.smiles for one in part), labels, tuple(one.domain for one in part)
    )


def named(texts: Sequence[str]) -> str:
    """The first ones, for a message."""
    more = f" and {len(texts) - NAMED:,} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more


def _fingerprint(splits: Mapping[str, Molecules]) -> str:
    seen = hashlib.blake2b(digest_size=8)
    for name in SPLITS:
        part = splits[name]
        for texts in (part.smiles, part.domains):
            seen.update("\n".join(texts).encode() + b"\0")
        seen.update(part.labels.tobytes())
    return seen.hexdigest()
