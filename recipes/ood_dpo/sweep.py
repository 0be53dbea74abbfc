"""A sweep: all experiments of a plan, by one of three engines, and the tables and the page of what
came of them.

Whatever happens to the sweep, an experiment that has its file of results is done: the same command
goes on with the others.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from brimful.errors import UsageError
from brimful_train.checkpoints.training_state import flat
from recipes.common.cache import lock, write_whole
from recipes.common.facts import read_facts, write_facts
from recipes.common.running import say
from recipes.ood_dpo import page
from recipes.ood_dpo.ensemble import check_settings
from recipes.ood_dpo.experiments import HEADS, Experiment, progress, table, write_table
from recipes.ood_dpo.runs import Bench, Settings, work

FILE_NAME = "sweep.json"


@dataclass(frozen=True)
class Facts:
    """What results of one folder have in common; a sweep of others goes into another folder."""

    head: dict[str, Any]
    learning: dict[str, Any]
    dataset: dict[str, Any]
    cross: bool


def sweep(settings: Settings, words: Sequence[str] = ()) -> int:
    """Does what is left of the plan. `words`: the command line, for workers. Exit code 0, or 1
    where an experiment failed.

    Raises UsageError for what cannot be meant, and where the folder holds results of other
    settings.
    """
    bench = Bench(settings)
    plan, results = bench.plan(), settings.results
    if settings.sweep.only:
        names = set(settings.sweep.only)
        work([one for one in plan if one.name in names], bench, results.write)
        return 0
    if settings.sweep.status:
        print(progress(plan, results))
        return 0
    if settings.sweep.engine == "ensemble" and any(one.method in HEADS for one in plan):
        check_settings(settings.config)  # before anything is written
    with lock(settings.out / "sweep", "sweeping into", say):
        _check(settings)
        left = results.left(plan)
        say(f"{len(plan) - len(left):,} of {len(plan):,} experiments are done, {len(left):,} left.")
        if left:
            engine = importlib.import_module(f"recipes.ood_dpo.{settings.sweep.engine}_engine")
            engine.run(left, bench, words)
        return finish(plan, settings)


def _check(settings: Settings) -> None:
    facts = Facts(
        dataclasses.asdict(replace(settings.head, loss="dpo")),
        {key: value for key, value in settings.config.as_json().items() if key in _LEARNING},
        {
            key: value
            for key, value in dataclasses.asdict(settings.dataset).items()
            if key not in ("dataset", "domain")
        },
        settings.sweep.cross,
    )
    before = (
        read_facts(settings.out / FILE_NAME, FILE_NAME, Facts)
        if (settings.out / FILE_NAME).is_file()
        else None
    )
    if before is not None and before != facts:
        had, has = (flat(dataclasses.asdict(one)) for one in (before, facts))
        names = {key: re.sub("[._]", " ", key) for key in has if had.get(key) != has[key]}
        differs = [f"{name} {had.get(key)} and not {has[key]}" for key, name in names.items()]
        raise UsageError(
            f"{settings.out} holds results of another sweep: it has {', '.join(differs)}.",
            "They cannot stand in one table.",
            "Choose another folder with --out.",
        )
    write_facts(settings.out, FILE_NAME, facts)


_LEARNING = (
    "epochs",
    "max_steps",
    "batch",
    "optimizer",
    "schedule",
    "precision",
    "clip_norm",
    "patience_samples",
)


def finish(plan: Sequence[Experiment], settings: Settings) -> int:
    """The tables and the page. 1 where an experiment failed."""
    frame = table(plan, settings.results)
    write_table(frame, settings.out)
    write_whole(settings.out / "page.html", page.sweep_page(frame))
    say(progress(plan, settings.results))
    say(f"The page: {settings.out / 'page.html'}")
    return 1 if (frame.state == "failed").any() else 0
