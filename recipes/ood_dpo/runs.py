"""The data sets of a sweep, and one experiment on them: a head trained, or a baseline fitted, and
tested.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import nn

from brimful.errors import BrimfulError, UsageError
from brimful_train.config import Config
from brimful_train.distributed.ranks import device_for
from recipes.common.running import say
from recipes.ood_dpo import baselines
from recipes.ood_dpo.datasets import Dataset, load_dataset
from recipes.ood_dpo.experiments import (
    HEADS,
    Experiment,
    Result,
    Results,
    SweepOptions,
    experiments,
)
from recipes.ood_dpo.features import features_of
from recipes.ood_dpo.head import energies
from recipes.ood_dpo.metrics import metrics
from recipes.ood_dpo.recipe import Loaded, train_head
from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions, HeadOptions


@dataclass(frozen=True)
class Settings:
    """What all experiments of a sweep have in common."""

    sweep: SweepOptions
    dataset: DatasetOptions
    encoder: EncoderOptions
    head: HeadOptions
    config: Config

    @cached_property
    def device(self) -> torch.device:
        return device_for(self.config.device)

    @property
    def out(self) -> Path:
        return self.config.out

    @cached_property
    def results(self) -> Results:
        return Results(self.out / "results")

    def head_of(self, method: str) -> HeadOptions:
        return replace(self.head, loss=method)


class Bench:
    """The data sets of a sweep, each loaded when it is first asked for."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        sweep, dataset = settings.sweep, settings.dataset
        self.encoders = sweep.encoders or (settings.encoder.encoder,)
        self._options: dict[str, DatasetOptions] = {}
        for spec in sweep.datasets or (dataset.dataset,):
            for domain in sweep.domains or (dataset.domain,):
                options = replace(dataset, dataset=spec, domain=domain)
                name = _name(options)
                if name in self._options:
                    raise UsageError(
                        f"Two data sets have the name {name}.", suggestion="Rename a file."
                    )
                self._options[name] = options
        self._datasets: dict[str, Dataset] = {}
        self._loaded: dict[tuple[str, str], Loaded] = {}
        self._loadable: dict[str, list[str]] = {}
        self._detectors: tuple[tuple[str, str, int], baselines.Detectors] | None = None

    @property
    def datasets(self) -> list[str]:
        return list(self._options)

    def plan(self) -> list[Experiment]:
        return experiments(
            self.datasets, self.encoders, self.settings.sweep.methods, self.settings.sweep.seeds
        )

    def load(self, name: str, encoder: str) -> Loaded:
        """Raises UsageError for data or an encoder that cannot be had."""
        if (name, encoder) not in self._loaded:
            if name not in self._datasets:
                self._datasets[name] = load_dataset(self._options[name], say)
            dataset = self._datasets[name]
            options = replace(self.settings.encoder, encoder=encoder)
            features = features_of(dataset, options, device=str(self.settings.device), say=say)
            self._loaded[name, encoder] = Loaded(dataset, features)
        return self._loaded[name, encoder]

    def detectors(self, one: Experiment) -> baselines.Detectors:
        """Kept while the data set, encoder and seed stay: their methods share a classifier."""
        key = (one.dataset, one.encoder, one.seed)
        if self._detectors is None or self._detectors[0] != key:
            known = self.load(one.dataset, one.encoder).known(one.seed)
            self._detectors = key, baselines.Detectors(known, one.seed)
        return self._detectors[1]

    def tests(self, experiment: Experiment) -> Iterator[tuple[str, Loaded]]:
        """What an experiment is tested on: its own data set, and with --cross all others that can
        be loaded.
        """
        others = self.loadable(experiment.encoder) if self.settings.sweep.cross else ()
        for name in dict.fromkeys([experiment.dataset, *others]):
            yield name, self.load(name, experiment.encoder)

    def loadable(self, encoder: str) -> list[str]:
        """Data sets without an error; the experiments of the others show it."""
        if encoder not in self._loadable:
            self._loadable[encoder] = [
                name for name in self.datasets if self._can_load(name, encoder)
            ]
        return self._loadable[encoder]

    def _can_load(self, name: str, encoder: str) -> bool:
        try:
            self.load(name, encoder)
        except BrimfulError:
            return False
        return True


def _name(options: DatasetOptions) -> str:
    """As `load_dataset` names it."""
    if not options.dataset:
        raise UsageError("There is no data set.", suggestion="Name some with --datasets.")
    stem = options.dataset.partition(":")[2] or Path(options.dataset).stem
    return f"{stem}-{options.domain}" if options.domain else stem


def work(some: Sequence[Experiment], bench: Bench, done: Callable[[Result], None]) -> None:
    """One after the other, in this process. An experiment that fails has a result too: its error."""
    for one in some:
        begun = time.perf_counter()
        try:
            result = run_head(one, bench) if one.method in HEADS else run_baseline(one, bench)
        except Exception as error:
            result = Result(one, error=sentence(error))
        if one.method not in HEADS:
            result = replace(result, seconds=time.perf_counter() - begun)
        done(replace(result, engine=bench.settings.sweep.engine))


def sentence(error: BaseException) -> str:
    return (
        " ".join(error.sentences())
        if isinstance(error, BrimfulError)
        else f"{type(error).__name__}: {error}"
    )


def run_baseline(one: Experiment, bench: Bench) -> Result:
    score = bench.detectors(one).fit(one.method)
    tests = {}
    for name, test in bench.tests(one):
        scores = [
            score(test.features.arrays[split], test.smiles(split))
            for split in ("iid_test", "ood_test")
        ]
        tests[name] = metrics(*scores)
    return Result(one, tests)


def run_head(one: Experiment, bench: Bench) -> Result:
    """A training by the engine, which goes on where it was killed; its folder is gone once there is
    a result.
    """
    settings = bench.settings
    config = replace(settings.config, out=settings.out / "runs" / one.name, seed=one.seed)
    begun = time.perf_counter()
    pairs = bench.load(one.dataset, one.encoder).pairs(one.seed)
    trained = train_head(pairs, settings.head_of(one.method), config)
    seconds, best = time.perf_counter() - begun, trained.result.best
    result = tested(one, trained.head, bench)
    shutil.rmtree(config.out, ignore_errors=True)
    validation = best["auroc"] if best else None
    return replace(
        result,
        validation_auroc=validation,
        samples=trained.result.samples,
        updates=trained.result.steps,
        seconds=seconds,
    )


def tested(one: Experiment, head: nn.Module, bench: Bench) -> Result:
    settings = bench.settings
    head.to(settings.device)
    tests = {}
    for name, test in bench.tests(one):
        arrays = [test.features.arrays[split] for split in ("iid_test", "ood_test")]
        tests[name] = metrics(*(energies(head, array, settings.device) for array in arrays))
    return Result(one, tests)
