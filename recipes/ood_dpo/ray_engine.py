"""`sweep --engine ray`: a task for each data set, encoder and seed, with the resources that brimful
predicts for it. On one machine Ray packs as many at once as cards, cores and memory allow.

Features go to the tasks through Ray's object store, and results come back as values: the nodes
share no folder. A node that dies takes its tasks with it, and Ray starts them elsewhere.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from brimful.errors import UsageError
from brimful.units import counted, format_bytes
from recipes.common.running import say
from recipes.ood_dpo.experiments import Experiment, Result
from recipes.ood_dpo.runs import Bench, Settings, work

TRIES = 10  # of a task whose node or process died


def run(left: list[Experiment], bench: Bench, words: Sequence[str]) -> None:
    """All methods of a data set, encoder and seed in one task, one after the other."""
    settings = bench.settings
    # the features are encoded once, before the tasks want them
    by_task = bench.grouped(left, lambda each, _: (each.dataset, each.encoder, each.seed))
    tasks = list(by_task.values())
    if not tasks:
        return
    resources = task_resources(tasks, bench, words)
    if not ray.is_initialized():
        # unasked, Ray would take a cluster that somebody else left on this machine
        address = settings.sweep.ray_address or os.environ.get("RAY_ADDRESS", "local")
        ray.init(address=address, log_to_driver=False, include_dashboard=False)
    say(
        f"{counted(len(tasks), 'task')} of {resources['num_cpus']} cores and "
        f"{format_bytes(resources['memory'])} each."
    )
    for task in tasks:
        bench.tests(task[0])  # with --cross every data set is loaded
    stored = {key: ray.put(loaded) for key, loaded in bench.loaded.items()}
    remote = ray.remote(_work).options(**resources)
    waiting = {remote.remote(settings, task, stored): task for task in tasks}
    while waiting:
        (done,), _ = ray.wait(list(waiting))
        task = waiting.pop(done)
        try:
            for result in ray.get(done):
                bench.done(result)
        except RayError as error:
            bench.fail(task, error)


def task_resources(
    tasks: Sequence[Sequence[Experiment]], bench: Bench, words: Sequence[str]
) -> dict[str, Any]:
    """What a task asks of the cluster: its cores, its host memory, and the share of a card that its
    memory is.

    Of the task that holds most molecules: on a CPU measured by an audit of its first steps, on a
    card predicted. One answer serves all seeds: a seed does not change what a training takes.
    """

    def molecules(task: Sequence[Experiment]) -> int:
        tests = bench.tests(task[0]).values()
        return sum(len(array) for data in tests for array in data.features.arrays.values())

    settings, name = bench.settings, max(tasks, key=molecules)[0].name
    command = [sys.executable, "-m", "recipes.ood_dpo", *words, "--only", name]
    host = _peak(["audit", "--device", "cpu"], command, settings.out)["host_bytes"]
    resources = {"num_cpus": settings.sweep.threads, "max_retries": TRIES, "memory": int(host)}
    if settings.device.type == "cuda":
        total = torch.cuda.mem_get_info(settings.device)[1]
        verb = ["predict", "--no-what-if", "--gpu-memory", f"{total // 2**20}MiB"]
        share = _peak(verb, command, settings.out)["device_bytes"] / total
        resources["num_gpus"] = min(1.0, max(0.01, round(share + 0.005, 2)))
    return resources


def _peak(verb: Sequence[str], command: Sequence[str], out: Path) -> dict[str, Any]:
    """The peak of memory that brimful names for `command`."""
    brimful = [sys.executable, "-m", "brimful", *verb, "--json", "--home", str(out / "records")]
    done = subprocess.run([*brimful, "--", *command], capture_output=True, text=True)
    try:
        return json.loads(done.stdout)["peak"]
    except (ValueError, KeyError):
        raise UsageError(
            f"brimful {verb[0]} of one experiment ended with {done.returncode}: "
            f"{(done.stdout + done.stderr).strip()[-500:]}",
            "Tasks are packed by the memory that it names.",
            "Take --engine ensemble, which needs no tasks.",
        ) from None


def _work(
    settings: Settings, task: list[Experiment], stored: dict[tuple[str, str], ray.ObjectRef]
) -> list[Result]:
    """In a process of Ray. Nothing is read or encoded here."""
    torch.set_num_threads(settings.sweep.threads)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="ood-dpo-") as folder:
        here = replace(settings, config=replace(settings.config, out=Path(folder)))
        loaded = {key: ray.get(reference) for key, reference in stored.items()}
        work(task, Bench(here, loaded), results.append)
    return results
