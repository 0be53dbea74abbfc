"""The data sets of a sweep, and one experiment on them: a head trained, or a baseline fitted, and
tested.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from brimful.errors import BrimfulError, UsageError
from brimful.measure import host
from brimful_train.config import Config
from brimful_train.data.room import host_now
from brimful_train.distributed.ranks import device_for
from brimful_train.model.threads import adopt_threads, choose_threads
from brimful_train.reporting.peak_memory import EVAL, TRAIN, Peaks
from brimful_train.reporting.progress_log import memory_fields, settings_table
from recipes.common.cache import write_json
from recipes.common.host_allocator import set_host_allocator
from recipes.common.running import say
from recipes.ood_dpo import baselines
from recipes.ood_dpo.datasets import Dataset, dataset_name, load_dataset
from recipes.ood_dpo.experiments import (
    HEADS,
    Experiment,
    Result,
    Results,
    Standing,
    experiments,
)
from recipes.ood_dpo.features import features_of
from recipes.ood_dpo.head import energies
from recipes.ood_dpo.metrics import metrics
from recipes.ood_dpo.recipe import Loaded, train_head
from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions, HeadOptions, SweepOptions

LEARNING = (
    "epochs",
    "max_steps",
    "batch",
    "optimizer",
    "schedule",
    "precision",
    "clip_norm",
    "patience_samples",
)
Group = TypeVar("Group")
Score = Callable[[Loaded, str], np.ndarray]  # of the molecules of a split


@dataclass(frozen=True)
class Settings:
    """What all experiments of a sweep have in common."""

    sweep: SweepOptions
    dataset: DatasetOptions
    encoder: EncoderOptions
    head: HeadOptions
    config: Config

    @property
    def device(self) -> torch.device:
        return device_for(self.config.device)

    @property
    def out(self) -> Path:
        return self.config.out

    def learning(self) -> dict[str, Any]:
        """What all results of a folder have in common, as JSON."""
        config = self.config.as_json()
        return {"head": asdict(self.head), "learning": {name: config[name] for name in LEARNING}}

    def head_of(self, method: str) -> HeadOptions:
        return replace(self.head, loss=method)


def set_up_host(settings: Settings) -> None:
    """Freed memory is kept, and as many threads compute as the engine would take here. Who goes on
    in the same folder takes as many again: the last bits of a sum depend on how it is divided.
    """
    device, file = settings.device, settings.out / "threads.json"
    set_host_allocator("keep", device.type)
    row = choose_threads(host_now(device), device)
    if file.is_file():
        row = adopt_threads(row, **json.loads(file.read_text(encoding="utf-8")))
    write_json(file, {"threads": torch.get_num_threads(), "cores": host.cores()})
    say("\n".join(settings_table([row])))


class Bench:
    """The data sets of a sweep, each loaded when it is first asked for.

    loaded: by names of data set and encoder, what is loaded already; of one that cannot be loaded
    its error.
    """

    def __init__(
        self,
        settings: Settings,
        loaded: Mapping[tuple[str, str], Loaded | BrimfulError] | None = None,
    ) -> None:
        self.settings, self.results = settings, Results(settings.out / "results")
        sweep, dataset = settings.sweep, settings.dataset
        self.encoders = sweep.encoders or (settings.encoder.encoder,)
        self._options: dict[str, DatasetOptions] = {}
        for spec in sweep.datasets or (dataset.dataset,):
            for domain in sweep.domains or (dataset.domain,):
                options = replace(dataset, dataset=spec, domain=domain)
                name = dataset_name(options)
                if not spec:
                    raise UsageError("There is no data set.", suggestion="Name some: --datasets.")
                if name in self._options:
                    raise UsageError(
                        f"Two data sets have the name {name}.", suggestion="Rename a file."
                    )
                self._options[name] = options
        self.datasets = list(self._options)
        self._datasets: dict[str, Dataset] = {}
        self.loaded = dict(loaded or {})
        self._detectors: dict[tuple[str, str, int], baselines.Detectors] = {}
        self.standing: Standing | None = None  # of a sweep under way

    def plan(self) -> list[Experiment]:
        sweep = self.settings.sweep
        return experiments(self.datasets, self.encoders, sweep.methods, sweep.seeds)

    def done(self, result: Result) -> None:
        result = replace(result, engine=self.settings.sweep.engine)
        self.results.write(result)
        if self.standing is not None:
            self.standing.add(result)

    def fail(self, some: Iterable[Experiment], error: Exception) -> None:
        for experiment in some:
            self.done(Result(experiment, error=sentence(error)))

    def grouped(
        self, some: Iterable[Experiment], key: Callable[[Experiment, Loaded], Group]
    ) -> dict[Group, list[Experiment]]:
        """By their key. What cannot be loaded fails here; all else is in memory now."""
        groups: dict[Group, list[Experiment]] = {}
        for experiment in some:
            try:
                group = key(experiment, self.load(experiment.dataset, experiment.encoder))
            except Exception as error:
                self.fail([experiment], error)
            else:
                groups.setdefault(group, []).append(experiment)
        return groups

    def peaks(self, experiment: Experiment) -> Peaks:
        loaded = self.load(experiment.dataset, experiment.encoder)
        return loaded.peaks(self.settings.device)

    def load(self, name: str, encoder: str) -> Loaded:
        """Raises UsageError for data or an encoder that cannot be had."""
        key = name, encoder
        if key not in self.loaded:
            try:
                self.loaded[key] = self._load(name, encoder)
            except BrimfulError as error:
                self.loaded[key] = error
        loaded = self.loaded[key]
        if isinstance(loaded, BrimfulError):
            raise loaded
        return loaded

    def _load(self, name: str, encoder: str) -> Loaded:
        if name not in self._datasets:
            self._datasets[name] = load_dataset(self._options[name], say)
        options = replace(self.settings.encoder, encoder=encoder)
        device = str(self.settings.device)
        return Loaded(
            self._datasets[name],
            features_of(self._datasets[name], options, device=device, say=say),
        )

    def detectors(self, experiment: Experiment) -> baselines.Detectors:
        """Kept while the data set, encoder and seed stay: their methods share a classifier."""
        key = (experiment.dataset, experiment.encoder, experiment.seed)
        if key not in self._detectors:
            self._detectors = {key: self.load(*key[:2]).detectors(experiment.seed)}
        return self._detectors[key]

    def tests(self, experiment: Experiment) -> dict[str, Loaded]:
        """What an experiment is tested on: its own data set, and with --cross all others that can
        be loaded; the experiments of those that cannot show the error.
        """
        tests = {experiment.dataset: self.load(experiment.dataset, experiment.encoder)}
        for name in self.datasets if self.settings.sweep.cross else ():
            with suppress(BrimfulError):
                tests[name] = self.load(name, experiment.encoder)
        return tests


def work(some: Sequence[Experiment], bench: Bench, done: Callable[[Result], None]) -> None:
    """One after the other, in this process. The result of an experiment that fails is its error."""
    for experiment in some:
        begun = time.perf_counter()
        run = run_head if experiment.method in HEADS else run_baseline
        try:
            result = replace(run(experiment, bench), seconds=time.perf_counter() - begun)
        except Exception as error:
            result = Result(experiment, error=sentence(error))
        done(result)


def sentence(error: BaseException) -> str:
    if isinstance(error, BrimfulError):
        return " ".join(error.sentences())
    return f"{type(error).__name__}: {error}".splitlines()[0]


def run_baseline(experiment: Experiment, bench: Bench) -> Result:
    peaks = bench.peaks(experiment)
    with peaks.phase(TRAIN):
        score = bench.detectors(experiment).fit(experiment.method)
    with peaks.phase(EVAL):
        result = tested(
            experiment,
            bench,
            lambda data, split: score(data.features.arrays[split], data.smiles(split)),
        )
    return replace(result, memory=memory_fields(peaks.of))


def run_head(experiment: Experiment, bench: Bench) -> Result:
    """A training by the engine, which goes on where it was killed; its folder is gone once there is
    a result.
    """
    settings, seed = bench.settings, experiment.seed
    config = replace(settings.config, out=settings.out / "runs" / experiment.name, seed=seed)
    pairs = bench.load(experiment.dataset, experiment.encoder).pairs(seed)
    peaks = bench.peaks(experiment)
    trained = train_head(pairs, settings.head_of(experiment.method), config, peaks)
    result = tested(experiment, bench, score_of(trained.head, settings.device))
    file, best = trained.result.statistics, trained.result.best
    statistics = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    shutil.rmtree(config.out, ignore_errors=True)
    return replace(
        result,
        validation_auroc=best["auroc"] if best else None,
        samples=trained.result.samples,
        updates=trained.result.steps,
        epoch_seconds=statistics.get("avg_epoch_time_seconds"),
        samples_per_second=statistics.get("samples_per_second"),
        memory=memory_fields(peaks.of),
    )


def score_of(head: nn.Module, device: torch.device) -> Score:
    head.to(device)
    return lambda data, split: energies(head, data.features.arrays[split], device)


def tested(experiment: Experiment, bench: Bench, score: Score) -> Result:
    tests = {
        name: metrics(score(data, "iid_test"), score(data, "ood_test"))
        for name, data in bench.tests(experiment).items()
    }
    return Result(experiment, tests)
