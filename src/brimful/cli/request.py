"""`brimful request`: its options."""

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from brimful.cli import views
from brimful.cli.options import CARD, COMMON, Card, Common, Words


def _queue_names(context: object) -> list[str]:
    """For a shell that completes --for."""
    from brimful.show.queues import QUEUES

    return list(QUEUES)


def request(
    *,
    queue: Annotated[
        str | None, Parameter(name="--for", metavar="QUEUE", completer=_queue_names)
    ] = None,
    card: Card = CARD,
    common: Common = COMMON,
    words: Words = (),
) -> int:
    """What to request from a queue: GPU, cores, host memory.

    The smallest card that fits: without --gpu brimful looks at all cards that it knows and that the
    queue has a name for.

    Parameters
    ----------
    queue
        Print it as text to paste for slurm, skypilot, ray or kubernetes.
    """
    from brimful.verbs.request import request as verb

    with views.progress() as watcher:
        record, wanted = verb(words, queue=queue, **asdict(card), **common.chosen(watcher))
    return views.show_request(record, wanted, queue, common.json, common.details)
