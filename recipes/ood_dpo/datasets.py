"""A data set: molecules in five splits, of which three are in distribution and two come of other
domains.

A file that has splits keeps them. Otherwise they are made as DrugOOD makes its own (Ji et al. 2022,
section 3.2): domains in an order go to the in-distribution part until it has 60 % of the molecules,
then half of the rest to `ood_val`, then to `ood_test`; no domain is in two of the three. The
in-distribution part is cut at random, 60 : 20 : 20.
"""

import hashlib
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
from recipes.common.workers import mapped
from recipes.ood_dpo.domains import describe
from recipes.ood_dpo.experiments import Frame
from recipes.ood_dpo.settings import DatasetOptions
from recipes.ood_dpo.sources import SPLITS, read_rows

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
    """`splits` has all five names, none of them empty. `fingerprint`: a digest of the contents."""

    name: str
    splits: Mapping[str, Molecules]
    fingerprint: str


def dataset_name(options: DatasetOptions) -> str:
    stem = options.dataset.partition(":")[2] or Path(options.dataset).stem
    return f"{stem}-{options.domain}" if options.domain else stem


def load_dataset(options: DatasetOptions, say: Say = to_standard_error) -> Dataset:
    """Reads and splits. `say` reports and counts SMILES that RDKit cannot read, which are left out.

    Raises UsageError: a file, column, row or split that is missing or wrong, molecules in two
    splits, one class or domain only.
    """
    rows = read_rows(options, say)
    if len(rows) > 1 and rows.label.nunique(dropna=False) == 1 and rows.label.notna().all():
        raise UsageError(
            f"{options.dataset}: every label is {rows.label[0]:g}, so there is one class only.",
            "A classifier would have nothing to tell apart.",
            "Name another column with --label-column; none: there are no labels.",
        )
    given = rows.split.notna().any()
    if given:
        rows = _sampled(rows, options)
    molecules = _described(rows, options, say)
    if not given:
        molecules = _split(molecules, options)
    molecules = _apart(molecules, options, say)
    if not given:
        molecules = _sampled(molecules, options)
    splits, digest = {}, hashlib.blake2b(digest_size=8)
    for name in SPLITS:
        part = molecules[molecules.split == name]
        labels = part.label.to_numpy(np.float32)
        splits[name] = Molecules(tuple(part.smiles), labels, tuple(part.domain))
        for texts in (part.smiles, part.domain):
            digest.update("\n".join(texts).encode() + b"\0")
        digest.update(labels.tobytes())
    empty = [name for name in SPLITS if not len(splits[name])]
    if empty:
        raise UsageError(
            f"{options.dataset}: {' and '.join(empty)} is empty.",
            "Each of the five splits is measured or learned from.",
        )
    return Dataset(dataset_name(options), splits, digest.hexdigest())


def classes(dataset: Dataset) -> dict[str, np.ndarray]:
    """(n,) int64 of each split: 0 or 1, -1 where unknown. Labels of two values are classes as they
    are; others are, by whether they are above the training molecules' median.
    """
    train = dataset.splits["train"].labels
    values = np.unique(train[~np.isnan(train)])
    threshold = np.nan
    if len(values):
        threshold = values.mean() if len(values) == 2 else np.nanmedian(train)
    return {
        name: np.where(np.isnan(split.labels), -1, split.labels > threshold).astype(np.int64)
        for name, split in dataset.splits.items()
    }


def _described(rows: Frame, options: DatasetOptions, say: Say) -> Frame:
    """The rows that RDKit reads, with `canonical` SMILES, and the domain that was asked for."""
    kind = options.domain or ("scaffold" if rows.domain.isna().any() else "assay")
    described = [*mapped(partial(describe, scaffold=kind == "scaffold"), [*rows.smiles], cores())]
    is_valid = np.array([description is not None for description in described], dtype=bool)
    if not is_valid.all():
        invalid = rows[~is_valid]
        names = [f"{s[:60]!r} ({p})" for s, p in zip(invalid.smiles, invalid.place, strict=True)]
        say(
            f"RDKit cannot read {len(invalid):,} of {len(rows):,} SMILES, which are left out: "
            f"{named(names)}."
        )
    known = [description for description in described if description is not None]
    molecules = rows[is_valid].assign(canonical=[description.canonical for description in known])
    if kind == "scaffold":
        return molecules.assign(domain=[description.scaffold for description in known])
    if kind == "size":
        return molecules.assign(domain=[str(description.heavy_atoms) for description in known])
    if molecules.domain.isna().any():
        raise UsageError(
            f"{molecules.place[molecules.domain.isna()].iloc[0]}: there is no assay.",
            suggestion="Name it with --domain-column, or another --domain.",
        )
    return molecules


def _split(molecules: Frame, options: DatasetOptions) -> Frame:
    """By domain. Small molecules, or common scaffolds and assays, are in distribution; a hash
    orders equals. In distribution at random; rows of one molecule stay together.
    """
    counts = molecules.domain.value_counts().to_dict()
    if len(counts) < 3:
        raise UsageError(
            f"{options.dataset} has {counted(len(counts), 'domain')}.",
            "At least three are needed: one in distribution, one for ood_val, one for ood_test.",
            "Choose another --domain (scaffold, size).",
        )
    by_size = options.domain == "size"

    def place(domain: str) -> tuple[int, bytes]:
        hashed = hashlib.blake2b(domain.encode()).digest()
        return (int(domain) if by_size else -counts[domain], hashed)

    order = sorted(counts, key=place)
    sizes = np.cumsum([counts[domain] for domain in order])
    first = _nearest(sizes, sizes[-1] * IN_DISTRIBUTION, 1, len(order) - 2)
    second = _nearest(sizes, (sizes[first - 1] + sizes[-1]) / 2, first + 1, len(order) - 1)
    number = molecules.domain.map({domain: index for index, domain in enumerate(order)})
    in_distribution = number < first
    names = sorted(set(molecules.canonical[in_distribution]))
    if len(names) < 3:
        raise UsageError(
            f"{options.dataset}: {counted(len(names), 'molecule')} would be in distribution, for "
            "three splits.",
            suggestion="Give more molecules, or another --domain.",
        )
    np.random.default_rng([options.split_seed, 0]).shuffle(names)
    shares = VALIDATION, 1 - TRAIN - VALIDATION
    validation, test = (max(1, round(len(names) * share)) for share in shares)
    side = dict.fromkeys(names, "train") | dict.fromkeys(names[:validation], "iid_val")
    side |= dict.fromkeys(names[validation : validation + test], "iid_test")
    outside = np.where(number < second, "ood_val", "ood_test")
    split = molecules.canonical.map(side).where(in_distribution, outside)
    return molecules.assign(split=split).iloc[number.argsort(kind="stable")]


def _nearest(sizes: np.ndarray, wanted: float, least: int, most: int) -> int:
    """How many domains have together nearest to `wanted` molecules."""
    return int(np.clip(np.argmin(np.abs(sizes - wanted)) + 1, least, most))


def _apart(molecules: Frame, options: DatasetOptions, say: Say) -> Frame:
    """No molecule is in two splits."""
    rank = molecules.split.map(KEPT_FIRST.index)
    first = rank.groupby(molecules.canonical).transform("min")
    last = rank.groupby(molecules.canonical).transform("max")
    shared = molecules[first < last].groupby("canonical").split.unique()
    if shared.empty:
        return molecules
    where = [
        f"{canonical} ({', '.join(name for name in SPLITS if name in splits)})"
        for canonical, splits in shared.items()
    ]
    some = counted(len(shared), "molecule")
    if options.shared == "error":
        raise UsageError(
            f"{options.dataset}: {some} {'is' if len(shared) == 1 else 'are'} in more than one "
            f"split: {named(where)}.",
            "A molecule that was learned from must not be measured.",
            "Mend the file, or keep each in the split that is measured alone with --shared "
            "leave-out.",
        )
    lost = molecules.split[rank > first].value_counts()
    counts = ", ".join(f"{lost[name]:,} of {name}" for name in SPLITS if name in lost)
    say(
        f"{some} in more than one split: {counts} left out; each stays in the split that is "
        "measured."
    )
    return molecules[rank == first]


def _sampled(molecules: Frame, options: DatasetOptions) -> Frame:
    """Of each split at most --subsample molecules."""
    kept = []
    for number, name in enumerate(SPLITS):
        places = np.flatnonzero(molecules.split == name)
        if options.subsample is not None and len(places) > options.subsample:
            chance = np.random.default_rng([options.split_seed, 1, number])
            places = places[np.sort(chance.choice(len(places), options.subsample, replace=False))]
        kept.append(places)
    return molecules.iloc[np.concatenate(kept)]


def named(texts: Sequence[str]) -> str:
    """The first ones, for a message."""
    more = f" and {len(texts) - NAMED:,} more" if len(texts) > NAMED else ""
    return ", ".join(texts[:NAMED]) + more
