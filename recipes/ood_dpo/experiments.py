"""What a sweep consists of: experiments, one small file of results for each, and the tables made of
them. No torch here.

An experiment is one method on one data set, with one encoder and one seed. Its file is written
whole or not at all, so a sweep that is killed goes on with those that have none.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas
from pandas import DataFrame

from brimful.errors import UsageError, nearest
from brimful.units import counted, format_duration
from recipes.common.cache import write_json

HEADS = ("dpo", "bce", "mse", "hinge")
BASELINES = ("msp", "odin", "energy", "mahalanobis", "knn", "lof", "mc_dropout", "conformal")
TRIVIAL = "trivial"
METHODS = (*HEADS, *BASELINES, TRIVIAL)
MEASURES = ("auroc", "aupr", "fpr95")
Frame = Any  # pandas.DataFrame, or a column of it: its methods have no exact types
IDENTITY = ["dataset", "encoder", "method", "seed"]
TRAINING = ["validation_auroc", "samples", "updates", "seconds", "engine", "error"]
PHASES = ("encoding", "train", "eval")
# as training_stats.json names them; gb is GiB
MEMORY = [
    name
    for phase in PHASES
    for name in (
        f"peak_gpu_memory_{phase}_gb",
        f"peak_gpu_memory_{phase}_reserved_gb",
        f"peak_host_memory_{phase}_gb",
    )
]
COST = ["epoch_seconds", "samples_per_second", "peak_shared_by", *MEMORY, "encoding_cached"]


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
    """What came of an experiment. tests: data set → measures on its iid_test and ood_test.

    seconds and epoch_seconds: of an ensemble's member, its share of the time of all, so that its
    samples_per_second are those of all together. memory: as in training_stats.json, of all
    `peak_shared_by` experiments that trained at once.
    """

    experiment: Experiment
    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    validation_auroc: float | None = None
    samples: int | None = None
    updates: int | None = None
    seconds: float | None = None
    engine: str = ""
    error: str = ""
    epoch_seconds: float | None = None
    samples_per_second: float | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    peak_shared_by: int = 1


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
    or is left. trivial_auroc: what heavy atoms and rings alone reach in the same test.
    """
    rows: list[dict[str, Any]] = []
    for experiment in plan:
        result = results.read(experiment)
        row = {**asdict(experiment), "state": "left", "tested_on": experiment.dataset}
        if result is not None:
            row |= asdict(result) | result.memory
            row["state"] = "failed" if result.error else "done"
        tests = row.get("tests") or {experiment.dataset: {}}
        rows += [{**row, "tested_on": name, **measures} for name, measures in tests.items()]
    whole = dict.fromkeys(("samples", "updates", "peak_shared_by"), "Int64")
    floats = dict.fromkeys((*MEASURES, *MEMORY, *COST[:2]), "float64")
    columns = [*IDENTITY, "tested_on", "state", *MEASURES, *TRAINING, *COST]
    frame = DataFrame(rows, columns=columns).astype(
        {**whole, **floats, "encoding_cached": "boolean"}
    )
    same_test = ["dataset", "encoder", "seed", "tested_on"]
    trivial = frame[frame.method == TRIVIAL].set_index(same_test).auroc.rename("trivial_auroc")
    return frame.join(trivial, on=same_test)


def dataset_metrics(frame: Frame) -> dict[str, Any]:
    """data set → encoder → method → data set of the test → measure → mean, standard deviation (of a
    sample; nan for one seed) and number over seeds. Beside them trivial_auroc, and the cost of the
    trainings under the data set's own test: means over seeds, and the largest peaks.
    """
    metrics: dict[str, Any] = {}
    done = frame[frame.state == "done"]
    for keys, group in done.groupby([*IDENTITY[:3], "tested_on"], sort=False):
        place = metrics
        for key in keys:
            place = place.setdefault(key, {})
        for name in MEASURES:
            over_seeds = group[name].agg(["mean", "std"]).to_dict()
            place[name] = {**over_seeds, "seeds": len(group)}
        place["trivial_auroc"] = group.trivial_auroc.mean()
        if keys[0] == keys[-1]:
            place["cost"] = {
                **group[["seconds", *COST[:2]]].mean().to_dict(),
                **group[MEMORY].max().to_dict(),
                "peak_shared_by": int(group.peak_shared_by.max()),
                "encoding_cached": bool(group.encoding_cached.eq(True).all()),
            }
    return metrics


def progress(frame: Frame) -> str:
    """A line for each data set, encoder and method: what is done and left; then each error."""
    each = frame.drop_duplicates(IDENTITY)
    counts = pandas.crosstab([each.dataset, each.encoder, each.method], each.state)
    lines = [counts.reindex(columns=["done", "left", "failed"], fill_value=0).to_string()]
    for row in each[each.state == "failed"].itertuples():
        lines.append(f"{row.dataset}, {row.encoder}, {row.method}, seed {row.seed}: {row.error}")
    return "\n".join(lines)


class Standing:
    """Says every few seconds how many experiments are done, and about how long the others take: by
    what those of the same method took. `done`: those that have a result already.
    """

    EVERY_S = 5.0

    def __init__(
        self, plan: Sequence[Experiment], done: Results, say: Callable[[str], None]
    ) -> None:
        self._plan, self._say = plan, say
        results = [result for each in plan if (result := done.read(each)) and not result.error]
        # None: it failed, or took a time that is not known
        self._took = {result.experiment: result.seconds for result in results}
        self._under_way: Mapping[Experiment, float] = {}
        self._begun = self._said = time.monotonic()
        self._measured_s = 0.0  # since then

    def add(self, result: Result) -> None:
        seconds = None if result.error else result.seconds
        self._took[result.experiment] = seconds
        self._measured_s += seconds or 0.0
        self._tell()

    def under_way(self, seconds_left: Mapping[Experiment, float]) -> None:
        """What each experiment that trains now still takes."""
        self._under_way = seconds_left
        self._tell()

    def line(self) -> str:
        """Nothing of the time left where none is known yet."""
        took: dict[str, list[float]] = {}
        for experiment, seconds in self._took.items():
            took.setdefault(experiment.method, []).extend([seconds] if seconds else [])
        means = {method: fmean(times) for method, times in took.items() if times}
        left = [experiment for experiment in self._plan if experiment not in self._took]
        times = [self._under_way.get(each, means.get(each.method)) for each in left]
        known = [seconds for seconds in times if seconds is not None]
        text = f"{len(self._took):,} of {counted(len(self._plan), 'experiment')} done"
        if not known:
            return text
        # tasks that run side by side take less than the sum
        passed = time.monotonic() - self._begun
        at_once = min(1.0, passed / self._measured_s) if self._measured_s else 1.0
        left_s = max(1.0, round(at_once * sum(known)))
        text += f", about {format_duration(left_s)} left"
        unknown = len(times) - len(known)
        return text + (f" and {unknown:,} whose time is not known yet" if unknown else "")

    def _tell(self) -> None:
        if len(self._took) < len(self._plan) and time.monotonic() >= self._said + self.EVERY_S:
            self._said = time.monotonic()
            self._say(f"  {self.line()}")
