"""`request`: what to ask a queue for: the smallest card that fits a command, cores for its loader,
host memory.
"""

from collections.abc import Mapping, Sequence
from typing import Unpack

from brimful.command import placeholders
from brimful.decide.queue_request import queue_request
from brimful.decide.run.settings import BATCH_SIZE
from brimful.errors import DoesNotFit, UsageError
from brimful.show.headline import headline
from brimful.show.queues import QUEUES, RAY, SKYPILOT
from brimful.trials.devices import ALL, CardNames, CardRequest, cards
from brimful.trials.results import require_whole
from brimful.trials.session import Options
from brimful.values import Command, QueueRequest, Record, Setting, Verdict
from brimful.verbs.predict import predict
from brimful_inside.launchers import words_of_command

# where nobody names cards: all that a queue has a name for
_CARDS = {"skypilot": ",".join(SKYPILOT), "ray": ",".join(RAY)}


def request(
    argv: Sequence[str],
    *,
    queue: str | None = None,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
    **card: Unpack[CardNames],
) -> tuple[Record, QueueRequest]:
    """Predicts the command for the cards that are named, or else for all, and answers for the
    smallest that fits: (the record of that prediction, what to ask for). `queue`: of `QUEUES`.

    Raises UsageError for an unknown queue and for a batch size that is left open for several cards,
    DoesNotFit where none fits for sure, what cut the prediction short, and the errors of `predict`.
    """
    if queue is not None and queue not in QUEUES:
        raise UsageError(
            f"--for {queue}",
            "brimful does not know this queue",
            f"it knows {', '.join(QUEUES)}; without --for it says in plain words what to ask for",
        )
    if not card.get("gpu") and not card.get("gpu_memory"):
        card["gpu"] = _CARDS.get(queue or "", ALL)
    is_open = BATCH_SIZE in {*placeholders(Command(tuple(argv)))} - {*(settings or {})}
    if is_open and len(cards(CardRequest(**card))) > 1:
        raise UsageError(
            "the batch size is left open, and several cards are asked about",
            "nearly every card fits some batch size, so that none is the smallest that fits",
            "give the batch size, or name one card: --gpu a100-40gb",
        )
    record = predict(argv, settings=settings, options=options, smallest=True, **card)
    prediction = require_whole(record)
    if prediction.verdict != Verdict.FITS:
        raise DoesNotFit(
            headline(record).sentence,
            "there is nothing to ask a queue for",
            "`brimful report` shows what would make it fit; --gpu names other cards",
        )
    return record, queue_request(
        prediction, record.trials, words_of_command(argv).launcher is not None
    )
