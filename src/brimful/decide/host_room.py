"""`doctor --host-policy`: what a command asks of this machine to load its data, what it really
does, and what there is room for, by the policy in `loading`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from brimful.decide.loaders_seen import main_loader
from brimful.decide.loading import WORKER_BYTES, Asked, Host, Need, eval_batch, plan_loader
from brimful.units import format_bytes
from brimful.values import Audit, HostRoom, HostSetting, Setting, Source, TrialResult
from brimful_inside.wire import LoaderSeen

_NUMBER_BYTES = 8  # assumed: batches are seen by their shapes, and no type has more
_NOUNS = {
    "num_workers": "workers",
    "prefetch_factor": "batches that a worker makes ahead",
    "batch_size": "samples of a batch",
    "eval_batch_size": "samples of an evaluation's batch",
}


def need_of(loader: LoaderSeen | None, batch_size: int | None = None) -> Need:
    """Of a loader as a trial saw it; None: of a script without one. `batch_size`: in place of its
    own. A worker's own bytes are assumed.
    """
    batches = [batch for batch in (loader.batches if loader is not None else ()) if batch.samples]
    each_bytes = (
        sum(map(math.prod, batch.shapes)) * _NUMBER_BYTES / (batch.samples or 1)
        for batch in batches
    )
    largest = max((batch.samples or 1 for batch in batches), default=1)
    length = loader.length if loader is not None else None
    return Need(max(each_bytes, default=0.0), batch_size or largest, 1, length or 1000)


def host_room(host: Host, trial: TrialResult, audit: Audit, flags: Mapping[str, str]) -> HostRoom:
    """`flags`: those of the command, by setting."""
    loader, evaluation = main_loader(trial), main_loader(trial, "eval")
    if loader is None:
        return HostRoom("The trial saw no DataLoader: how the data is loaded is not known.")
    training = host if evaluation is None else host.for_training()
    need, asks = need_of(loader), Asked(None, loader.prefetch_factor, loader.pin_memory)
    freely, plan = plan_loader(training, need), plan_loader(training, need, asks)
    plan = plan if plan.workers else freely  # with fewer batches ahead there may be room for some
    held = [need.host_bytes(count, plan.prefetch, plan.pin_memory) for count in (0, 1)]
    worker = (
        f"a worker, with the batches that it makes ahead, takes {format_bytes(held[1] - held[0])}, "
        f"{format_bytes(WORKER_BYTES)} of it assumed"
    )
    pinned = "there is no card to copy to"
    if host.cards:
        pinned = "copies to the card need not be waited for" if freely.pin_memory else freely.why
    requested = {"pin_memory": loader.pin_memory, **audit.requested}
    numbers: list[tuple[str, int | None, int, str]] = [  # name, effective, room, why
        ("num_workers", loader.workers, plan.workers, plan.why),
        ("prefetch_factor", loader.prefetch_factor, plan.prefetch, worker),
        ("pin_memory", loader.pin_memory and host.cards > 0, freely.pin_memory, pinned),
        _batch("batch_size", training, need, requested),
    ]
    if evaluation is not None:
        used = replace(asks, workers=min(loader.workers, plan.workers))
        taken = plan_loader(training, need, used)
        left = host.less(taken.host_bytes, taken.shm_bytes)
        numbers.append(_batch("eval_batch_size", left, need_of(evaluation), requested))
    asked = {asked.setting: asked for asked in audit.asked}
    places = dict.fromkeys(audit.requested, "the command")
    places |= {name: known.place for name, known in asked.items()} | dict(flags)
    rows = tuple(
        HostSetting(
            name,
            requested.get(name),
            effective,
            f"{why}; {asked[name].changed_at} makes it {effective}"
            if name in asked and asked[name].changed_at
            else why,
            Source.MEASURED,
            places.get(name, ""),
            room,
        )
        for name, effective, room, why in numbers
    )
    return HostRoom(_summary(rows), rows)


def _batch(
    name: str, host: Host, need: Need, requested: Mapping[str, Setting]
) -> tuple[str, int, int, str]:
    wanted = max(need.batch, int(requested.get(name, 0)))
    room, why, _ = eval_batch(host, need.sample_bytes, wanted, given=False)
    return name, need.batch, room, why or f"a batch takes {format_bytes(need.batch_bytes)} at most"


def _summary(rows: Sequence[HostSetting]) -> str:
    counts = [
        (row, _NOUNS[row.name], row.effective if row.requested is None else row.requested)
        for row in rows
        if row.name in _NOUNS
    ]
    for row, noun, asked in counts:
        if row.room < int(asked or 0):
            return f"{row.room:,} of the {asked:,} {noun} asked for fit here: {row.why}."
    for row, noun, asked in counts:
        if asked != row.effective:
            return (
                f"The script has {row.effective} {noun} where {asked} were asked for; there is "
                f"room for {row.room}."
            )
    return "This machine has room for all that the command asks for."
