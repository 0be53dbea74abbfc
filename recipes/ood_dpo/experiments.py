"""What a sweep consists of: experiments, one small file of results for each, and the tables made of
them. No torch here.

An experiment is one method on one data set, with one encoder and one seed. Its file is written
whole or not at all, so a sweep that is killed goes on with those that have none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter, validators

from brimful.errors import UsageError, nearest
from recipes.common.cache import write_whole

HEADS = ("dpo", "bce", "mse", "hinge")
BASELINES = ("msp", "odin", "energy", "mahalanobis", "knn", "lof", "mc_dropout", "conformal")
TRIVIAL = "trivial"
METHODS = (*HEADS, *BASELINES, TRIVIAL)
MEASURES = ("auroc", "aupr", "fpr95")
Frame = Any  # pandas.DataFrame
Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]


@Parameter(name="*", group=Group("Sweep", sort_key=0))
@dataclass(frozen=True)
class SweepOptions:
    """Every data set × encoder × method × seed is one experiment. Of several heads, `methods` is
    the loss, and not --loss.
    """

    datasets: Names = ()
    """As --dataset takes them; without it that one."""
    domains: Names = ()
    """Each data set once with each of these (assay, scaffold, size); without it --domain."""
    encoders: Names = ()
    """Without it --encoder."""
    methods: Names = ("dpo",)
    """dpo, bce, mse, hinge: a head trained with this loss; or a baseline: msp, odin, energy,
    mahalanobis, knn, lof, mc_dropout, conformal; all: each of them. trivial (heavy atoms and rings
    alone) always stands beside them."""
    seeds: Count = 10
    """So many: 0, 1, 2 ..."""
    cross: Annotated[bool, Parameter(negative="")] = False
    """Test what was trained on each data set on every other one too."""
    engine: Literal["ensemble", "local", "ray"] = "ensemble"
    """ensemble: all seeds and data sets in one batched model; local: processes packed onto cards
    and cores by their predicted memory; ray: tasks of a Ray cluster."""
    ray_address: str | None = None
    """Of a running cluster; without it one is started here."""
    threads: Count = 1
    """Cores of one process (local, ray)."""
    state_every_s: Annotated[float, Parameter(validator=validators.Number(gte=0))] = 20.0
    """Seconds after which an ensemble writes its state; a kill costs as much."""
    status: Annotated[bool, Parameter(negative="")] = False
    """Show what is done and what is left, and end."""
    only: Annotated[Names, Parameter(show=False)] = ()
    """A worker's experiments, by name."""


@Parameter(name="*", group=Group("Study", sort_key=0))
@dataclass(frozen=True)
class StudyOptions:
    """Each batch size is trained twice: until all have seen as many samples, and until all have
    made as many updates.
    """

    sizes: Annotated[tuple[Count, ...], Parameter(consume_multiple=True, negative="")] = (
        64,
        256,
        512,
        1024,
        2048,
        4096,
        8192,
    )
    """Batch sizes, in pairs."""
    seeds: Count = 3
    """So many: 0, 1, 2 ..."""
    samples: Count = 40_000
    """Pairs seen by each, in the first of the two."""
    updates: Count = 100
    """Updates of each, in the second."""
    noise_updates: Count = 50
    """Updates along which the gradient noise scale is averaged."""


@dataclass(frozen=True, order=True)
class Experiment:
    dataset: str
    encoder: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        return "--".join(
            re.sub(r"[^\w.]+", "-", part)
            for part in (self.dataset, self.encoder, self.method, f"seed-{self.seed}")
        )


@dataclass(frozen=True)
class Result:
    """What came of an experiment. tests: data set → measures on its iid_test and ood_test. seconds:
    of an ensemble's member, its share of the time of all."""

    experiment: Experiment
    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    validation_auroc: float | None = None
    samples: int | None = None
    updates: int | None = None
    seconds: float | None = None
    engine: str = ""
    error: str = ""


@dataclass(frozen=True)
class Point:
    """One seed at one batch size. `equal`: what it has in common with the other sizes, samples or
    updates. updates and samples:
    what it trained on. noise_scale: in pairs; None where no batch was large enough. peak_bytes: of
    all seeds together."""

    equal: str
    batch_size: int
    batch_in_force: int
    seed: int
    auroc: float
    validation_auroc: float
    updates: int
    samples: int
    seconds: float
    peak_bytes: int | None
    noise_scale: float | None


class Results:
    """The folder of a sweep's result files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

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

    def left(self, plan: Iterable[Experiment]) -> list[Experiment]:
        """Those that have no result or failed: a new start tries these again."""
        return [one for one in plan if (found := self.read(one)) is None or found.error]


def write_json(path: Path, content: object) -> None:
    write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def chosen_methods(names: Sequence[str]) -> tuple[str, ...]:
    """With "all" resolved, each once, and the trivial one at the end. Raises UsageError for a name
    that is none.
    """
    wanted = [
        method
        for name in names
        for method in ((*HEADS[:1], *BASELINES) if name == "all" else (name,))
    ]
    for name in wanted:
        if name not in METHODS:
            close = nearest(name, METHODS)
            more = f" Nearest: {close[0]}." if close else ""
            raise UsageError(
                f"--methods {name}: there is no such method.",
                suggestion=f"Name some of {', '.join(METHODS)}, or all.{more}",
            )
    return tuple(dict.fromkeys([*wanted, TRIVIAL]))


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
    import pandas

    rows: list[dict[str, Any]] = []
    for one in plan:
        found = results.read(one)
        state = "left" if found is None else "failed" if found.error else "done"
        row = {**asdict(one), "state": state}
        if found is not None:
            row |= {name: getattr(found, name) for name in _OF_RESULTS}
        tests = found.tests if found is not None and found.tests else {one.dataset: {}}
        rows += [{**row, "tested_on": name, **measures} for name, measures in tests.items()]
    columns = [
        "dataset",
        "encoder",
        "method",
        "seed",
        "tested_on",
        "state",
        *MEASURES,
        *_OF_RESULTS,
    ]
    return pandas.DataFrame(rows, columns=columns).astype({"samples": "Int64", "updates": "Int64"})


_OF_RESULTS = ("validation_auroc", "samples", "updates", "seconds", "engine", "error")


def write_table(frame: Frame, folder: Path) -> None:
    """results.parquet and dataset_metrics.json, each whole or not there."""
    write_whole(folder / "results.parquet", frame.to_parquet(index=False))
    write_json(folder / "dataset_metrics.json", dataset_metrics(frame))


def dataset_metrics(frame: Frame) -> dict[str, Any]:
    """data set → encoder → method → data set of the test → measure → mean, standard deviation (of a
    sample; null for one seed) and number over seeds."""
    made: dict[str, Any] = {}
    done = frame[frame.state == "done"]
    for keys, group in done.groupby(["dataset", "encoder", "method", "tested_on"], sort=False):
        dataset, encoder, method, tested_on = keys
        place = made.setdefault(dataset, {}).setdefault(encoder, {}).setdefault(method, {})
        place[tested_on] = {
            name: {
                "mean": float(group[name].mean()),
                "std": float(group[name].std()) if len(group) > 1 else None,
                "seeds": len(group),
            }
            for name in MEASURES
        }
    return made


def progress(plan: Sequence[Experiment], results: Results) -> str:
    """What is done and what is left, a line for each data set, encoder and method; then each error."""
    lines, errors = [], []
    for key in dict.fromkeys((one.dataset, one.encoder, one.method) for one in plan):
        members = [one for one in plan if (one.dataset, one.encoder, one.method) == key]
        found = {one: results.read(one) for one in members}
        failed = [result for result in found.values() if result is not None and result.error]
        done = sum(result is not None for result in found.values()) - len(failed)
        left = len(members) - done - len(failed)
        counts = [f"{done} done"] + [
            f"{n} {what}" for n, what in ((left, "left"), (len(failed), "failed")) if n
        ]
        lines.append((*key, ", ".join(counts)))
        errors += [f"{result.experiment.name}: {result.error}" for result in failed]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    shown = [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*shown, *errors])
