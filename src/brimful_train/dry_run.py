"""The worst micro-batches are tried before the first step, so that memory that is missing is
missing at the start.

Forward and backward, as in a step; then gradients are dropped, random states and buffers put back,
and nothing was trained.
"""

from brimful.values import EffectiveSetting
from brimful_inside import script
from brimful_train.distributed.ranks import Ranks, Vote
from brimful_train.parts import Parts
from brimful_train.reporting.peak_memory import TRAIN
from brimful_train.reporting.progress_log import Log
from brimful_train.rng_state import Randomness
from brimful_train.step.buffers import Buffers
from brimful_train.step.oom import Missing, attempt, free_what_is_cached
from brimful_train.step.step import Stepper


def dry_run(parts: Parts, stepper: Stepper, ranks: Ranks, log: Log) -> None:
    """Makes `stepper`'s pieces smaller where a micro-batch as bad as any that can come does not
    fit. Of samples without sizes the first step shows what any other does, and nothing is tried.
    Raises DoesNotFit on all ranks where one sample is too large for one of them.
    """
    if parts.pipeline.worst_step(stepper.at_once.split.at_once) is None:
        return
    at_once = stepper.at_once
    requested = at_once.split.limit
    with script.tried(TRAIN):
        recoveries = _recoveries(parts, stepper)
    votes = ranks.meet(Vote(piece=at_once.split.limit, recoveries=recoveries))
    at_once.adopt(votes)
    stepper.counts.recoveries += sum(vote.recoveries for vote in votes)
    if at_once.split.limit < requested:
        why = (
            "the worst micro-batches that the sizes allow, tried before the training, ran out of "
            "memory with more"
        )
        log.settings([EffectiveSetting("micro_batch", requested, at_once.split.limit, why)])


def _recoveries(parts: Parts, stepper: Stepper) -> int:
    """How often memory was missing before the pieces fit."""
    device, recoveries = parts.precision.device, 0
    buffers = Buffers(parts.network.module)
    where = " in the worst micro-batch that can come, tried before the training"
    with Randomness(device).kept():
        try:
            while isinstance(missing := attempt(lambda: _try(parts, stepper)), Missing):
                recoveries += 1
                stepper.drop_gradients()
                free_what_is_cached(device)
                stepper.shrink(missing, where, ".")
        finally:
            stepper.drop_gradients()
            buffers.put_back()
    return recoveries


def _try(parts: Parts, stepper: Stepper) -> None:
    """What is worst depends on how micro-batches are cut. The first one comes again at the end,
    when there are gradients already, as there are in a step of several micro-batches."""
    split, decomposes = stepper.at_once.split, stepper.task.decomposes
    step = parts.pipeline.worst_step(lambda samples: split.at_once(samples, decomposes))
    assert step is not None
    order = (*range(len(step.parts)), 0)
    stepper.forward_backward(
        step,
        [(part, *piece) for part in order for piece in split.pieces(step.parts[part], decomposes)],
    )
