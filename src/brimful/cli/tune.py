"""`brimful tune`: its options."""

from typing import Literal

from brimful.cli import views
from brimful.cli.options import COMMON, Common, Where, Words


def tune(
    *,
    device: Where = "auto",
    common: Common = COMMON,
    objective: Literal["throughput", "largest"] = "throughput",
    words: Words = (),
) -> int:
    """Which settings train fastest within memory?

    Each one is run before it is named.

    Parameters
    ----------
    objective
        throughput (most samples a second) or largest (the largest batch size that fits).
    """
    from brimful.verbs.tune import tune as verb

    with views.progress() as watcher:
        record = verb(
            words,
            device=device,
            objective=objective,
            **common.chosen(watcher),
        )
    return views.show_plan(record, common.json, common.details)
