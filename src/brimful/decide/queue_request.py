"""What to ask a queue for, by a prediction: cards, cores for the loader, host memory.

A queue's machine is not this one. What the training holds there is what its processes held in a
trial here, the CUDA libraries on top, and as much free memory that the policy in `loading` lets the
loader have its workers and batches.
"""

import math
from collections.abc import Sequence

from brimful.decide.host_room import need_of
from brimful.decide.loaders_seen import main_loader
from brimful.decide.loading import PREFETCH, SHARE, TRAINING_SHARE
from brimful.units import counted, format_bytes
from brimful.values import Estimate, Prediction, QueueRequest, Source, TrialResult

# assumed: what the driver and CUDA's libraries come to hold in a process that trains on a card,
# which a trial on an imaginary one does without
CUDA_HOST_BYTES = 3 << 30


def queue_request(
    prediction: Prediction, trials: Sequence[TrialResult], launched: bool = False
) -> QueueRequest:
    """`trials`: of that prediction, one at least on as many cards with a report. `launched`: the
    command starts the ranks of a machine itself, as torchrun does."""
    peak, loading = prediction.peak, prediction.loading
    assert peak is not None  # no verdict is without one
    shown = [trial for trial in trials if trial.reports]
    for line in prediction.which[:1]:  # which the rest is the answer for
        around = line.cards // line.machines, line.machines
        shown = [r for r in shown if (r.trial.device.cards, r.trial.device.machines) == around]
    result, loader, device = shown[-1], main_loader(shown[-1]), shown[-1].trial.device
    # one of so many ranks was started alone, and the queue is to start them all
    alone = None if device.ranks is None else min(device.cards, device.ranks)
    ranks = alone or len(result.reports)
    asked = loader.workers if loader is not None else 0
    needed = loading.needed if loading is not None and loading.busy is None else None
    workers = asked if needed is None else needed
    # of one rank
    need, pinned = need_of(loader, prediction.batch_size), bool(loader and loader.pin_memory)
    prefetch = (loader.prefetch_factor if loader is not None else None) or PREFETCH
    share = SHARE if main_loader(result, "eval") is None else SHARE * TRAINING_SHARE
    # of all ranks
    loads = ranks * need.host_bytes(workers, prefetch, pinned)
    cuda = ranks * CUDA_HOST_BYTES
    held = (alone or 1) * max(trial.host_bytes or 0 for trial in shown)
    host_bytes = Estimate(
        held + cuda + math.ceil(loads / share),
        Source.ESTIMATE,
        note=f"{format_bytes(held)} held in a trial here (measured), {format_bytes(cuda)} for "
        f"CUDA's libraries (assumed), and loading takes {format_bytes(loads)}, which is to be "
        f"{share:.0%} of what is free (host policy)",
    )
    return QueueRequest(
        gpu=prediction.gpu,
        cards=alone or sum(max(1, len(report.cards)) for report in result.reports),
        machines=device.machines,
        ranks=ranks,
        tasks=1 if launched else alone or 1,
        cores=_cores(ranks, asked, needed),
        host_bytes=host_bytes if held else None,
        shm_bytes=ranks * need.shm_bytes(workers, prefetch),
        peak_bytes=Estimate(peak.device_bytes, peak.source, *peak.device_interval_bytes),
        batch_size=prediction.batch_size,
    )


def _cores(ranks: int, asked: int, needed: int | None) -> Estimate:
    """One for each training process and each worker of its loader: as many as keep up with the
    card, else as many as the command has.
    """
    each = f"one for each of {ranks} training processes" if ranks > 1 else "one for the training"
    if needed is None:
        workers = counted(asked, "loader worker")
        note = f"{each}, and the command has {workers}; how many keep up with the card is not known"
        return Estimate(ranks * (1 + asked), Source.ASSUMED, note=note)
    workers = f"{counted(needed, 'loader worker')}{' each' if ranks > 1 else ''}"
    note = f"{each}, and {workers} to keep up with the card; the command has {asked}"
    return Estimate(ranks * (1 + needed), Source.PREDICTED, note=note)
