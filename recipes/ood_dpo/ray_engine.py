"""`sweep --engine ray`: a task for each data set, encoder and seed, with the resources that brimful
predicts for it.

Features go to the tasks through Ray's object store, and results come back as values: the nodes
share no folder. A node that dies takes its tasks with it, and Ray starts them elsewhere.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ray
import torch
from ray.exceptions import RayError

from brimful.units import counted, format_bytes
from recipes.common.running import say
from recipes.ood_dpo.experiments import Experiment, Result
from recipes.ood_dpo.local_engine import Needs, jobs_of, needed
from recipes.ood_dpo.recipe import Loaded
from recipes.ood_dpo.runs import Bench, Settings, sentence, work

TRIES = 10  # of a task whose node or process died


def run(left: list[Experiment], bench: Bench, words: Sequence[str]) -> None:
    jobs = jobs_of(left, bench)
    if not jobs:
        return
    settings = bench.settings
    needs = needed(jobs, bench, words)
    if not ray.is_initialized():
        ray.init(address=settings.sweep.ray_address, log_to_driver=False, include_dashboard=False)
    resources = requested(needs, settings)
    say(
        f"{counted(len(jobs), 'task')} of {resources['num_cpus']} cores and "
        f"{format_bytes(needs.host_bytes)} each."
    )
    loaded = {(one.dataset, one.encoder) for job in jobs for one in job}
    if settings.sweep.cross:
        loaded |= {(name, encoder) for _, encoder in loaded for name in bench.loadable(encoder)}
    stored = {key: ray.put(bench.load(*key)) for key in sorted(loaded)}
    task = ray.remote(_work).options(**resources)
    waiting = {task.remote(settings, job, stored): job for job in jobs}
    while waiting:
        (done,), _ = ray.wait(list(waiting))
        job = waiting.pop(done)
        try:
            results = ray.get(done)
        except RayError as error:
            results = [
                Result(one, engine="ray", error=sentence(error).splitlines()[0]) for one in job
            ]
        for result in results:
            settings.results.write(result)


def requested(needs: Needs, settings: Settings) -> dict:
    """What a task asks of the cluster: its cores, its host memory, and the share of a card that its
    memory is.
    """
    asked: dict = {
        "num_cpus": settings.sweep.threads,
        "memory": needs.host_bytes,
        "max_retries": TRIES,
    }
    if needs.device_bytes:
        total = torch.cuda.mem_get_info(settings.device)[1]
        asked["num_gpus"] = min(1.0, max(0.01, round(needs.device_bytes / total + 0.005, 2)))
    return asked


def _work(
    settings: Settings, some: list[Experiment], stored: dict[tuple[str, str], ray.ObjectRef]
) -> list[Result]:
    """In a process of Ray."""
    torch.set_num_threads(settings.sweep.threads)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="ood-dpo-") as folder:
        here = replace(settings, config=replace(settings.config, out=Path(folder)))
        work(some, Stored(here, {key: ray.get(one) for key, one in stored.items()}), results.append)
    return results


class Stored(Bench):
    """Data sets out of the object store; nothing is read or encoded here."""

    def __init__(self, settings: Settings, loaded: dict[tuple[str, str], Loaded]) -> None:
        super().__init__(settings)
        self._loaded = loaded

    def loadable(self, encoder: str) -> list[str]:
        return [name for name, of in self._loaded if of == encoder]
