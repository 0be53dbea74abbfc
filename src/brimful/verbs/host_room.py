"""What the policy for host memory says of a command's loader: how many workers there is room for, and what was given and is too
much."""

from __future__ import annotations

import math

from brimful.decide.loading import Asked, Host, LoaderPlan, Need, plan_loader
from brimful.measure import host
from brimful.values import Setting, TrialResult

_NUMBER_BYTES = 8  # assumed: batches are seen by their shapes, and no type has more


def loader_plan(trial: TrialResult, batch_size: int, workers: Setting | None, policy: str) -> LoaderPlan:
    """For the training loader of a trial at a batch size; `workers`: given by the user. A worker's own bytes are assumed."""
    report = trial.reports[0]
    here = Host(
        host.free_bytes(), host.cores(), host.shm_free_bytes(), max(1, report.world_size),
        cards=max(1, report.world_size) if report.device != "cpu" else 0,
    )  # fmt: skip
    loader = max((one for one in report.loaders if one.role == "train"), key=lambda one: one.batches_seen, default=None)
    seen = [batch for batch in (loader.batches if loader is not None else ()) if batch.samples]
    each = max((sum(map(math.prod, batch.shapes)) * _NUMBER_BYTES / (batch.samples or 1) for batch in seen), default=0.0)
    need = Need(each, batch_size, 1, (loader.length if loader is not None else None) or 1000)
    return plan_loader(here, need, Asked(workers=int(workers) if workers is not None else None), policy)
