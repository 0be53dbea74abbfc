"""`doctor --host-policy`: what a command asks of this machine to load its data, what it really
does, and what there is room for, by the policy in `loading`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from brimful.decide.loaders_seen import main_loader
from brimful.decide.loading import WORKER_BYTES, Asked, Host, Need, eval_batch, plan_loader
from brimful.units import format_bytes
from brimful.values import Audit, HostSetting, Source, TrialResult
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
    own = max((batch.samples or 1 for batch in batches), default=1)
    length = loader.length if loader is not None else None
    return Need(max(each_bytes, default=0.0), batch_size or own, 1, length or 1000)


def host_settings(
    host: Host, trial: TrialResult, audit: Audit, flags: Mapping[str, str]
) -> tuple[HostSetting, ...]:
    """A row for each setting that takes host memory; none where the trial saw no DataLoader.
    `flags`: the command's, by setting.
    """
    loader, evaluation = main_loader(trial), main_loader(trial, "eval")
    if loader is None:
        return ()
    training = host if evaluation is None else host.for_training()
    need, own = need_of(loader), Asked(None, loader.prefetch_factor, loader.pin_memory)
    freely, plan = plan_loader(training, need), plan_loader(training, need, own)
    plan = plan if plan.workers else freely  # with fewer batches ahead there may be room for some
    pinned_why = "copies to the card need not be waited for" if freely.pin_memory else freely.why
    worker_bytes = need.host_bytes(1, plan.prefetch, plan.pin_memory)
    worker_bytes -= need.host_bytes(0, 0, plan.pin_memory)
    worker = f"{format_bytes(worker_bytes)}, {format_bytes(WORKER_BYTES)} of it assumed"
    requested = {"pin_memory": loader.pin_memory, **audit.requested}
    known = {asked.setting: asked for asked in audit.asked}

    def row(name: str, effective: int | None, room: int, why: str) -> HostSetting:
        asked = known.get(name)
        if asked and asked.changed_at:
            why += f"; {asked.changed_at} makes it {effective}"
        given = "the command" if name in audit.requested else ""
        place = flags.get(name) or (asked.place if asked else given)
        return HostSetting(name, requested.get(name), effective, why, Source.MEASURED, place, room)

    def batch_row(name: str, here: Host, need: Need) -> HostSetting:
        wanted = max(need.batch, int(requested.get(name, 0)))
        room, why, _ = eval_batch(here, need.sample_bytes, wanted, given=False)
        held = f"a batch takes at most {format_bytes(need.batch_bytes)}"
        return row(name, need.batch, room, why or held)

    rows = [batch_row("batch_size", training, need)]
    if evaluation is not None:
        workers = min(loader.workers, plan.workers)
        used = plan_loader(training, need, replace(own, workers=workers))
        left = host.less(used.host_bytes, used.shm_bytes)
        rows.append(batch_row("eval_batch_size", left, need_of(evaluation)))
    return (
        *rows,
        row("num_workers", loader.workers, plan.workers, plan.why),
        row(
            "prefetch_factor",
            loader.prefetch_factor,
            plan.prefetch,
            f"a worker, with the batches that it makes ahead, takes {worker}",
        ),
        row(
            "pin_memory",
            loader.pin_memory and host.cards > 0,
            freely.pin_memory,
            pinned_why if host.cards else "there is no card to copy to",
        ),
    )


def host_summary(rows: Sequence[HostSetting]) -> str:
    """What matters most, as one sentence."""
    if not rows:
        return "the trial saw no DataLoader: brimful does not know how this command loads its data"
    by_name = {row.name: row for row in rows}
    counts = [(by_name[name], noun) for name, noun in _NOUNS.items() if name in by_name]
    for row, noun in counts:
        asked = row.effective if row.requested is None else row.requested
        if row.room < int(asked or 0):
            return f"{row.room:,} of the {asked:,} {noun} asked for fit here: {row.why}"
    for row, noun in counts:
        if row.requested not in (None, row.effective):
            return (
                f"the script has {row.effective} {noun} where {row.requested} were asked for; "
                f"there is room for {row.room}"
            )
    return "this machine has room for all that the command asks for"
