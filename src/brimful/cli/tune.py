"""`brimful tune`: its options."""

from typing import Annotated, Literal

from brimful.cli import views
from brimful.cli.options import COMMON, Common, Where, Words, flag


def tune(
    *,
    device: Where = "auto",
    common: Common = COMMON,
    objective: Literal["throughput", "largest"] = "throughput",
    host_policy: str = "measured",
    strict: Annotated[bool, flag()] = False,
    words: Words = (),
) -> int:
    """Which settings train fastest within memory?

    Each one is run before it is named.

    Parameters
    ----------
    objective
        throughput (most samples a second) or largest (the largest batch size that fits).
    host_policy
        How brimful limits the loader workers: measured (their bytes and those of their batches take
        at most 60 % of the free memory here) or ladder (a fixed number with under 8 GiB free, and
        with under 13 GiB).
    strict
        Refuse a number of workers that the host has no room for; without it, brimful keeps it with
        a warning.
    """
    from brimful.verbs.tune import tune as verb

    with views.progress() as watcher:
        record = verb(
            words,
            device=device,
            objective=objective,
            host_policy=host_policy,
            strict=strict,
            **common.chosen(watcher),
        )
    return views.show_plan(record, common.json, common.details)
