"""`brimful audit`: its options."""

from dataclasses import asdict

from brimful.cli import views
from brimful.cli.options import CARD, COMMON, Card, Common, Where, Words


def audit(
    *, card: Card = CARD, device: Where = "auto", common: Common = COMMON, words: Words = ()
) -> int:
    """Which batch size does the script really train with?

    Effective batch size, hidden caps, accumulation, repeated batches, loading.
    """
    from brimful.verbs.audit import audit as verb

    with views.progress() as watcher:
        record = verb(words, **asdict(card), device=device, **common.chosen(watcher))
    return views.show_audit(record, common.json, common.details)
