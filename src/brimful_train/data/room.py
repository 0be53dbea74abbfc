"""What loading may take here: memory of the host and of the card, measured once and the same on
every rank.
"""

import os
import socket
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import torch

from brimful.decide.loading import EVAL_TIMES, Host, ladder_batch, smallest
from brimful.measure import host
from brimful.values import Diagnostic
from brimful_train.batching import Batching, plan_batches
from brimful_train.config import Config
from brimful_train.distributed.ranks import Ranks


@dataclass(frozen=True)
class Room:
    host: Host
    device_free_bytes: int | None  # of the fullest card; None where there is none


def host_now(device: torch.device) -> Host:
    """This machine as it is, with as many ranks on it as torchrun says."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Host(
        host.free_bytes(),
        host.cores(),
        host.shm_free_bytes(),
        ranks,
        cards=ranks if device.type == "cuda" else 0,
    )


def shared_host(device: torch.device, ranks: Ranks) -> Host:
    """What all ranks plan with: the first rank of each machine measures, and the least of several
    machines holds.
    """
    named = ranks.gather((socket.gethostname(), host_now(device)))
    least = smallest(dict(reversed(named)).values())
    together = max(least.ranks, *Counter(name for name, _ in named).values())
    return replace(least, ranks=together, cards=together if least.cards else 0)


def device_free_bytes(device: torch.device, ranks: Ranks) -> int | None:
    """Of the fullest card of all ranks; None where the training is on none."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    return min((size for size in ranks.gather(free) if size is not None), default=None)


def plan_batches_on(
    host: Host, config: Config, ranks: int, train_samples: int, eval_samples: int | None
) -> tuple[Batching, tuple[Diagnostic, ...]]:
    """The batches in force, and warnings. On the ladder a micro-batch that nobody gave becomes
    smaller where little is free, in an effective batch that stays, unless an accumulation was
    given. Raises what `plan_batches` raises."""
    batch = config.batch
    if config.data.host_policy != "ladder":
        return plan_batches(batch, ranks, train_samples, eval_samples), ()
    micro, why, warnings = ladder_batch(
        host, "micro_batch", batch.micro_batch, config.gave("batch.micro_batch")
    )
    if why is not None and batch.accumulation is None and batch.effective is None:
        batch = replace(batch, effective=min(batch.micro_batch * ranks, train_samples))
    planned = plan_batches(replace(batch, micro_batch=micro), ranks, train_samples, eval_samples)
    evaluated, why_evaluated, more = ladder_batch(
        host,
        "eval_batch",
        batch.eval_batch or EVAL_TIMES * micro,
        config.gave("batch.eval_batch"),
    )
    if why is not None:
        requested = config.batch
        planned = _with_row(planned, "micro_batch", requested=requested.micro_batch, why=why)
        planned = _with_row(planned, "effective_batch", requested=requested.effective)
    if why_evaluated is not None and evaluated < planned.eval_batch:
        planned = with_eval_batch(planned, evaluated, why_evaluated)
    return planned, (*warnings, *more)


def with_eval_batch(batching: Batching, eval_batch: int, why: str) -> Batching:
    """With a smaller evaluation batch, and the reason in its row."""
    batching = _with_row(batching, "eval_batch", effective=eval_batch, why=why)
    return replace(batching, eval_batch=eval_batch)


def _with_row(batching: Batching, name: str, **changes: Any) -> Batching:
    changed = (replace(row, **changes) if row.name == name else row for row in batching.rows)
    return replace(batching, rows=tuple(changed))
