"""A sweep: all experiments of a plan, and the tables and the page of what came of them.

`--engine ensemble` trains heads with as many training pairs as each other in one model, then fits
the baselines one by one. Who trains with whom is written down before it begins, and the training's
state every few seconds, so that a sweep that is killed goes on with the same products, and ends
with the same numbers, bit for bit. `--engine ray` is `ray_engine.py`.

Whatever happens to the sweep, an experiment that has its file of results is done: the same command
goes on with the others.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import torch

from brimful.measure.course import Course
from brimful.units import counted
from brimful_inside.script import is_imaginary
from brimful_train.reporting.peak_memory import Peaks
from brimful_train.reporting.progress_log import finite_or_none, memory_fields
from recipes.common.cache import lock, write_json, write_whole
from recipes.common.description import require_same
from recipes.common.running import say
from recipes.ood_dpo import page
from recipes.ood_dpo.ensemble import Ensemble, Trained, check_settings
from recipes.ood_dpo.experiments import (
    HEADS,
    Experiment,
    Result,
    Standing,
    dataset_metrics,
    progress,
    table,
)
from recipes.ood_dpo.head import FEATURES, EnergyHead, make_head
from recipes.ood_dpo.runs import Bench, Settings, score_of, sentence, set_up_host, tested, work

FILE_NAME = "sweep.json"
# of the free memory, for an ensemble. Assumed: what was left out of `member_bytes` is less than
# the other half
SHARE = 0.5


def sweep(settings: Settings, words: Sequence[str] = ()) -> int:
    """Does what is left of the plan. `words`: the command line, which the page shows, and of which
    Ray's tasks are predicted. Exit code 0, or 1 where an experiment failed.

    Raises UsageError for what cannot be meant, and where the folder holds results of other
    settings.
    """
    bench = Bench(settings)
    plan, options = bench.plan(), settings.sweep
    if options.only:
        names = set(options.only)
        some = [experiment for experiment in plan if experiment.name in names]
        work(some, bench, bench.done)
        return 0
    if options.status:
        print(progress(table(plan, bench.results)))
        return 0
    if options.engine == "ensemble" and any(experiment.method in HEADS for experiment in plan):
        check_settings(settings.config)  # before anything is written
    with lock(settings.out / "sweep", "sweeping into", say):
        # each experiment has its own loss and data set
        same = replace(settings, head=settings.head_of("dpo")).learning()
        dataset = asdict(replace(settings.dataset, dataset="", domain=None))
        same |= {"dataset": dataset, "cross": options.cross}
        require_same(settings.out, FILE_NAME, same, "sweep")
        left = bench.results.left(plan)
        say(f"{len(plan) - len(left):,} of {len(plan):,} experiments are done, {len(left):,} left.")
        bench.standing = Standing(plan, bench.results, say)
        with watched(settings.device, settings.out / "occupancy.json") as starts:
            if left and options.engine == "ray":
                from recipes.ood_dpo import ray_engine  # it starts Ray's own processes

                ray_engine.run(left, bench, words)
            elif left:
                run_ensembles(left, bench)
        frame = table(plan, bench.results)
        write_whole(settings.out / "results.parquet", frame.to_parquet(index=False))
        write_json(settings.out / "dataset_metrics.json", finite_or_none(dataset_metrics(frame)))
        write_whole(settings.out / "page.html", page.sweep_page(frame, starts, words))
    say(progress(frame))
    say(f"The page: {settings.out / 'page.html'}")
    return 1 if (frame.state == "failed").any() else 0


@contextlib.contextmanager
def watched(device: torch.device, file: Path, every_s: float = 1.0) -> Iterator[list]:
    """How full and how busy the card is meanwhile, whoever uses it; without a card, the machine.

    Gives what `file` holds; when the block ends, with this start: its device, and points (seconds,
    share of the memory in use, share of the time busy or None).
    """
    starts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    course = Course[tuple[float, float, float | None]](every_s)
    ends, begun = threading.Event(), time.monotonic()

    def watch() -> None:
        ended = is_imaginary()
        psutil.cpu_percent()  # answers for the time since this thread asked before
        while not ended:
            ended = ends.wait(every_s)
            seconds = time.monotonic() - begun
            used, busy = psutil.virtual_memory().percent / 100, psutil.cpu_percent() / 100
            if device.type == "cuda":
                free, total = torch.cuda.mem_get_info(device)
                used, busy = 1 - free / total, None
                with contextlib.suppress(Exception):  # NVML and its errors are the driver's
                    busy = torch.cuda.utilization(device) / 100
            course.add(seconds, (round(seconds, 1), used, busy))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield starts
    finally:
        ends.set()
        thread.join()
        if course.points:  # none on an imaginary card
            starts.append({"device": str(device), "points": course.points})
            write_json(file, starts)


# --- the ensemble engine ---


def run_ensembles(left: list[Experiment], bench: Bench) -> None:
    set_up_host(bench.settings)
    folder = bench.settings.out / "ensembles"
    folder.mkdir(parents=True, exist_ok=True)
    killed = _killed(folder, bench.plan())
    again = {experiment for group in killed for experiment in group}
    heads = [experiment for experiment in left if experiment.method in HEADS]
    groups = _grouped([experiment for experiment in heads if experiment not in again], bench)
    for group in [*killed, *groups]:
        _train(group, bench, folder / f"{group[0].name}.json")
    others = sorted(
        (experiment for experiment in left if experiment.method not in HEADS),
        key=lambda experiment: (experiment.dataset, experiment.encoder, experiment.seed),
    )
    work(others, bench, bench.done)


def _killed(folder: Path, plan: Sequence[Experiment]) -> list[list[Experiment]]:
    """The ensembles that were killed. One whose experiments are no longer all in the plan is begun
    anew with what is left.
    """
    groups, by_name = [], {experiment.name: experiment for experiment in plan}
    for file in sorted(folder.glob("*.json")):
        names = json.loads(file.read_text(encoding="utf-8"))
        if all(name in by_name for name in names):
            groups.append([by_name[name] for name in names])
        else:
            _forget(file)
    return groups


def _grouped(left: Sequence[Experiment], bench: Bench) -> list[list[Experiment]]:
    """By loss and number of pairs, and as many at once as memory holds."""
    groups = bench.grouped(left, lambda each, data: (each.method, data.pairs(each.seed).pairs))
    device, parts = bench.settings.device, []
    is_card = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if is_card else psutil.virtual_memory().available
    for (_, pairs), group in groups.items():
        batch = min(pairs, bench.settings.config.batch.micro_batch)
        at_once = max(1, int(SHARE * free / member_bytes(pairs, batch, bench.settings.head.hidden)))
        parts += [group[start : start + at_once] for start in range(0, len(group), at_once)]
    return parts


def member_bytes(pairs: int, batch: int, hidden: int) -> int:
    """An upper bound of what a member takes beside the features that it shares: parameters,
    gradients, two moments and the best weights; a batch's features on both sides; each layer's
    activations, masks and gradients; which rows make a pair.
    """
    parameters = sum(parameter.numel() for parameter in EnergyHead(hidden=hidden).parameters())
    return 4 * (5 * parameters + 2 * batch * (FEATURES + 8 * (hidden + hidden // 2))) + 16 * pairs


def _train(group: Sequence[Experiment], bench: Bench, file: Path) -> None:
    settings, method, peaks = bench.settings, group[0].method, Peaks(bench.settings.device)

    def stopped(index: int, trained: Trained) -> None:
        if not bench.results.is_done(group[index]):
            result = _result(group[index], trained, bench)
            phases = bench.peaks(group[index]).of | peaks.of
            bench.done(replace(result, memory=memory_fields(phases), peak_shared_by=len(group)))

    def evaluated() -> None:
        if bench.standing is not None:
            left = {group[index]: ensemble.left_s(index) for index in ensemble.alive}
            bench.standing.under_way(left)

    try:
        members = [bench.load(each.dataset, each.encoder).pairs(each.seed) for each in group]
        write_json(file, [experiment.name for experiment in group])
        pairs = members[0].pairs
        say(f"{counted(len(group), 'head')} of {pairs:,} pairs at once, loss {method}.")
        state = file.with_suffix(".pt")
        ensemble = Ensemble(
            members, settings.head_of(method), settings.config, settings.device, state, peaks
        )
        ensemble.train(stopped, settings.sweep.state_every_s, evaluated)
    except Exception as error:
        bench.fail([each for each in group if bench.results.read(each) is None], error)
    _forget(file)


def _result(experiment: Experiment, trained: Trained, bench: Bench) -> Result:
    if trained.error:
        return Result(experiment, error=trained.error)
    head = make_head(bench.settings.head, experiment.seed)
    head.load_state_dict(trained.weights)
    try:
        result = tested(experiment, bench, score_of(head, bench.settings.device))
    except Exception as error:
        result = Result(experiment, error=sentence(error))
    return replace(
        result,
        validation_auroc=trained.best_auroc,
        samples=trained.samples,
        updates=trained.updates,
        seconds=trained.seconds,
        epoch_seconds=trained.seconds / len(trained.curve),
        samples_per_second=trained.samples / trained.seconds,
    )


def _forget(file: Path) -> None:
    file.with_suffix(".pt").unlink(missing_ok=True)
    file.unlink(missing_ok=True)
