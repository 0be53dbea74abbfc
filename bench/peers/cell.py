"""Peers and one job, in a process of their own: `python -m bench.peers.cell JOB PEER ...`. Each
line that begins with a brace is the result of one."""

import importlib
import json
import time
from collections.abc import Callable
from typing import Annotated, Any

from bench import harness
from bench.peers import drivers
from bench.peers.card import SEEDS, card, peak_of, room, stepped, true_largest
from bench.peers.jobs import GIVEN, JOBS, Job, train

MOST = 16_384  # where a predictor's answer does not depend on the size


def found(peer: str, job: Job, most: int | None) -> dict[str, Any]:
    """What a peer named, and what it met on the way."""
    with card(job.memory) as gpu, stepped() as sizes:
        named = drivers.FINDERS[peer](job, most)
        errors = gpu.ledgers[0].allocator.num_ooms
    return {
        "named": named,
        "ran": named in sizes,
        "trials": len(set(GIVEN)),
        "out_of_memory_errors": errors,
    }


def predicted(
    predicts: Callable[[Job, int], int], job: Job, true: int, most: int | None
) -> dict[str, Any]:
    """The largest size whose predicted bytes fit, and the bytes predicted of the true largest."""
    sizes: dict[int, int] = {}

    def fits(size: int) -> bool:
        sizes[size] = predicts(job, size)
        return sizes[size] <= room(job.memory)

    of_true = predicts(job, true)
    limit = most or MOST
    low, high = (0, 1) if not fits(1) else (1, limit + 1)
    if high > 1 and predicts(job, 2) == sizes[1]:
        low = high - 1  # it does not look at the size
    while high - low > 1:
        middle = min((low + high) // 2, 4 * low)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {
        "named": None if low == MOST else low,
        "ran": False,
        "trials": len(sizes),
        "out_of_memory_errors": 0,
        "predicted_bytes_of_true_largest": of_true,
    }


def result(peer: str, job: Job, true: int, most: int | None) -> dict[str, Any]:
    begun = time.process_time()
    try:
        if peer == "true":
            made = true_largest(job)
        else:
            importlib.import_module(drivers.MODULES[peer])
            begun = time.process_time()
            if peer in drivers.FINDERS:
                made = found(peer, job, most)
            else:
                made = predicted(drivers.PREDICTORS[peer], job, true, most)
    except Exception as error:  # whatever a peer does: it is named in the result
        first = str(error).strip().partition("\n")[0]
        made = {"error": f"{type(error).__name__}: {first}"[:300]}
    return {"peer": peer, **made, "seconds": round(time.process_time() - begun, 1)}


def main(
    name: str,
    peers: Annotated[
        list[str], "which; `train`: the loop itself, which brimful is asked about; `fits`: --sizes"
    ],
    *,
    batch_size: Annotated[int, "of the loop"] = 1,
    true: Annotated[int, "the true largest size, for predictors"] = 1,
    most: Annotated[int | None, "the largest size that may be named"] = None,
    sizes: Annotated[list[int] | None, "of each whether the loop trains at it"] = None,
) -> None:
    if peers == ["train"]:  # an epoch, of which a trial makes a few steps
        train(JOBS[name], batch_size, steps=len(JOBS[name].data()))
        return
    if peers == ["fits"]:
        fits = {size: peak_of(JOBS[name], size, SEEDS) is not None for size in sizes or ()}
        print(json.dumps(fits))
        return
    for peer in peers:
        print(json.dumps(result(peer, JOBS[name], true, most)), flush=True)


if __name__ == "__main__":
    harness.run(main)
