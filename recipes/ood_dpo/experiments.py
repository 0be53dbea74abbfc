"""What a sweep consists of: experiments, one small file of results for each, and the tables made of
them. No torch here.

An experiment is one method on one data set, with one encoder and one seed. Its file is written
whole or not at all, so a sweep that is killed goes on with those that have none.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas
from pandas import DataFrame

from brimful.errors import UsageError, nearest
from recipes.common.cache import write_json

HEADS = ("dpo", "bce", "mse", "hinge")
BASELINES = ("msp", "odin", "energy", "mahalanobis", "knn", "lof", "mc_dropout", "conformal")
TRIVIAL = "trivial"
METHODS = (*HEADS, *BASELINES, TRIVIAL)
MEASURES = ("auroc", "aupr", "fpr95")
Frame = Any  # pandas.DataFrame, or a column of it: its methods have no exact types
IDENTITY = ["dataset", "encoder", "method", "seed"]
TRAINING = ["validation_auroc", "samples", "updates", "seconds", "engine", "error"]


@dataclass(frozen=True, order=True)
class Experiment:
    dataset: str
    encoder: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        parts = (self.dataset, self.encoder, self.method, f"seed-{self.seed}")
        return "--".join(re.sub(r"[^\w.]+", "-", part) for part in parts)


@dataclass(frozen=True)
class Result:
    """What came of an experiment. tests: data set → measures on its iid_test and ood_test. seconds:
    of an ensemble's member, its share of the time of all.
    """

    experiment: Experiment
    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    validation_auroc: float | None = None
    samples: int | None = None
    updates: int | None = None
    seconds: float | None = None
    engine: str = ""
    error: str = ""


@dataclass(frozen=True)
class Results:
    """The folder of a sweep's result files."""

    folder: Path

    def path(self, experiment: Experiment) -> Path:
        return self.folder / f"{experiment.name}.json"

    def write(self, result: Result) -> None:
        write_json(self.path(result.experiment), asdict(result))

    def read(self, experiment: Experiment) -> Result | None:
        """None: not done yet, or a file that cannot be read, which is done anew."""
        try:
            content = json.loads(self.path(experiment).read_text(encoding="utf-8"))
            return Result(**{**content, "experiment": Experiment(**content["experiment"])})
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return None

    def is_done(self, experiment: Experiment) -> bool:
        result = self.read(experiment)
        return result is not None and not result.error

    def left(self, plan: Iterable[Experiment]) -> list[Experiment]:
        """Those that have no result or failed: a new start tries these again."""
        return [experiment for experiment in plan if not self.is_done(experiment)]


def chosen_methods(names: Sequence[str]) -> tuple[str, ...]:
    """With "all" resolved, each once, and the trivial one at the end. Raises UsageError for a name
    that does not exist.
    """
    for name in names:
        if name not in (*METHODS, "all"):
            close = nearest(name, METHODS)
            more = f" Nearest: {close[0]}." if close else ""
            raise UsageError(
                f"--methods {name}: there is no such method.",
                suggestion=f"Name some of {', '.join(METHODS)}, or all.{more}",
            )
    each = [(HEADS[0], *BASELINES) if name == "all" else (name,) for name in names]
    return tuple(dict.fromkeys([*sum(each, ()), TRIVIAL]))


def experiments(
    datasets: Sequence[str], encoders: Sequence[str], methods: Sequence[str], seeds: int
) -> list[Experiment]:
    """The plan, in the order in which it is done and shown."""
    return [
        Experiment(dataset, encoder, method, seed)
        for dataset in datasets
        for encoder in encoders
        for method in chosen_methods(methods)
        for seed in range(seeds)
    ]


def table(plan: Sequence[Experiment], results: Results) -> Frame:
    """A row for each experiment and data set it was tested on; one without measures where it failed
    or is left.
    """
    rows: list[dict[str, Any]] = []
    for experiment in plan:
        result = results.read(experiment)
        row = {**asdict(experiment), "state": "left", "tested_on": experiment.dataset}
        if result is not None:
            row |= asdict(result) | {"state": "failed" if result.error else "done"}
        tests = row.get("tests") or {experiment.dataset: {}}
        rows += [{**row, "tested_on": name, **measures} for name, measures in tests.items()]
    columns = [*IDENTITY, "tested_on", "state", *MEASURES, *TRAINING]
    return DataFrame(rows, columns=columns).astype({"samples": "Int64", "updates": "Int64"})


def dataset_metrics(frame: Frame) -> dict[str, Any]:
    """data set → encoder → method → data set of the test → measure → mean, standard deviation (of a
    sample; null for one seed) and number over seeds.
    """
    metrics: dict[str, Any] = {}
    done = frame[frame.state == "done"]
    for keys, group in done.groupby([*IDENTITY[:3], "tested_on"], sort=False):
        place = metrics
        for key in keys:
            place = place.setdefault(key, {})
        for name in MEASURES:
            std = None if len(group) == 1 else float(group[name].std())
            place[name] = {"mean": float(group[name].mean()), "std": std, "seeds": len(group)}
    return metrics


def progress(frame: Frame) -> str:
    """A line for each data set, encoder and method: what is done and left; then each error."""
    each = frame.drop_duplicates(IDENTITY)
    counts = pandas.crosstab([each.dataset, each.encoder, each.method], each.state)
    lines = [counts.reindex(columns=["done", "left", "failed"], fill_value=0).to_string()]
    for row in each[each.state == "failed"].itertuples():
        lines.append(f"{row.dataset}, {row.encoder}, {row.method}, seed {row.seed}: {row.error}")
    return "\n".join(lines)
