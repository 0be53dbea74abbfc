"""`sweep --engine ensemble`: heads with as many training pairs as each other in one model, then the
baselines one by one.

Who trains with whom is written down before it begins, and the training's state every few seconds,
so that a sweep that is killed goes on with the same products, and ends with the same numbers, bit
for bit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from brimful.units import counted
from recipes.common.host_allocator import set_host_allocator
from recipes.common.running import say
from recipes.ood_dpo.ensemble import Ensemble, Member, Trained
from recipes.ood_dpo.experiments import HEADS, Experiment, Result, write_json
from recipes.ood_dpo.head import FEATURES, EnergyHead, make_head
from recipes.ood_dpo.runs import Bench, sentence, tested, work

# of the free memory, for an ensemble. Assumed: what was left out of the sum below is less than the
# other half
SHARE = 0.5


def run(left: list[Experiment], bench: Bench, words: Sequence[str]) -> None:
    settings, results = bench.settings, bench.settings.results
    set_host_allocator("keep", settings.device.type)
    folder = settings.out / "ensembles"
    folder.mkdir(parents=True, exist_ok=True)
    begun = list(_begun(folder, bench.plan()))
    in_begun = {one for group in begun for one in group}
    for group in [
        *begun,
        *_grouped([one for one in left if one.method in HEADS and one not in in_begun], bench),
    ]:
        _train(group, bench, folder / f"{group[0].name}.json")
    others = [one for one in left if one.method not in HEADS]
    work(sorted(others, key=lambda one: (one.dataset, one.encoder, one.seed)), bench, results.write)


def _begun(folder: Path, plan: Sequence[Experiment]) -> Iterator[list[Experiment]]:
    """Ensembles that were killed. One whose experiments are no longer all in the plan is begun anew
    with what is left.
    """
    by_name = {one.name: one for one in plan}
    for file in sorted(folder.glob("*.json")):
        names = json.loads(file.read_text(encoding="utf-8"))
        if all(name in by_name for name in names):
            yield [by_name[name] for name in names]
        else:
            _forget(file)


def _grouped(left: Sequence[Experiment], bench: Bench) -> Iterator[list[Experiment]]:
    """By loss and number of pairs, and as many at once as memory holds. What cannot be loaded fails
    here.
    """
    groups: dict[tuple[str, int], list[Experiment]] = {}
    for one in left:
        try:
            pairs = bench.load(one.dataset, one.encoder).member(one.seed).rows.pairs
        except Exception as error:
            bench.settings.results.write(Result(one, engine="ensemble", error=sentence(error)))
        else:
            groups.setdefault((one.method, pairs), []).append(one)
    for (_, pairs), group in groups.items():
        batch = min(pairs, bench.settings.config.batch.micro_batch)
        each = member_bytes(pairs, batch, bench.settings.head.hidden)
        at_once = max(1, int(SHARE * _free_bytes(bench.settings.device) / each))
        yield from (group[start : start + at_once] for start in range(0, len(group), at_once))


def member_bytes(pairs: int, batch: int, hidden: int) -> int:
    """An upper bound of what a member takes beside the features that it shares: parameters,
    gradients, two moments and the best weights; a batch's features on both sides; each layer's
    activations, masks and gradients; which rows make a pair."""
    parameters = sum(parameter.numel() for parameter in EnergyHead(hidden=hidden).parameters())
    return 4 * (5 * parameters + 2 * batch * (FEATURES + 8 * (hidden + hidden // 2))) + 16 * pairs


def _free_bytes(device: torch.device) -> int:
    return (
        torch.cuda.mem_get_info(device)[0]
        if device.type == "cuda"
        else psutil.virtual_memory().available
    )


def _train(group: Sequence[Experiment], bench: Bench, file: Path) -> None:
    settings, results = bench.settings, bench.settings.results
    state = file.with_suffix(".safetensors")

    def stopped(index: int, trained: Trained) -> None:
        if (found := results.read(group[index])) is None or found.error:
            results.write(_result(group[index], trained, bench))

    try:
        members: list[Member] = [
            bench.load(one.dataset, one.encoder).member(one.seed) for one in group
        ]
        write_json(file, [one.name for one in group])
        say(
            f"{counted(len(group), 'head')} of {members[0].rows.pairs:,} pairs at once, loss "
            f"{group[0].method}."
        )
        ensemble = Ensemble(
            members, settings.head_of(group[0].method), settings.config, settings.device, state
        )
        ensemble.train(stopped, settings.sweep.state_every_s)
    except Exception as error:
        for one in group:
            if results.read(one) is None:
                results.write(Result(one, engine="ensemble", error=sentence(error)))
    _forget(file)


def _result(one: Experiment, trained: Trained, bench: Bench) -> Result:
    if trained.error:
        return Result(one, engine="ensemble", error=trained.error)
    head = make_head(bench.settings.head, one.seed)
    head.load_state_dict(trained.weights)
    try:
        result = tested(one, head, bench)
    except Exception as error:
        return Result(one, engine="ensemble", error=sentence(error))
    return replace(
        result,
        validation_auroc=trained.best_auroc,
        samples=trained.samples,
        updates=trained.updates,
        seconds=trained.seconds,
        engine="ensemble",
    )


def _forget(file: Path) -> None:
    file.with_suffix(".safetensors").unlink(missing_ok=True)
    file.unlink(missing_ok=True)
