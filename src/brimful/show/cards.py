"""Several cards in a prediction: which of them need the same, and what to call them."""

from __future__ import annotations

from collections.abc import Sequence

from brimful.values import CardPeak, PeakEstimate, Prediction

__all__ = ["card_groups", "cards_json", "cards_text"]

_NAMED = 4  # cards that are named one by one


def card_groups(cards: Sequence[CardPeak]) -> list[tuple[str, PeakEstimate]]:
    """(what the cards are called, their peak): those that need the same are one row, the fullest first."""
    groups: dict[PeakEstimate, list[CardPeak]] = {}
    for card in cards:
        groups.setdefault(card.peak, []).append(card)
    ordered = sorted(groups.items(), key=lambda group: -group[0].device_bytes)
    several_ranks = len({card.rank for card in cards}) > 1
    return [(_label(members, len(cards), several_ranks), peak) for peak, members in ordered]


def _label(members: list[CardPeak], total: int, several_ranks: bool) -> str:
    if len(members) == total:
        return f"each of {total} cards"
    names = [f"rank {card.rank}, cuda:{card.index}" if several_ranks else f"cuda:{card.index}" for card in members]
    if len(names) > _NAMED:
        return f"{names[0]} and {len(names) - 1} more"
    return "; ".join(names)


def cards_text(prediction: Prediction) -> str:
    """What a prediction is for: "NVIDIA A100", "each of 3 x NVIDIA A100", "NVIDIA A100 (one of 64 ranks)"."""
    name = prediction.gpu.name
    if prediction.alone_of is not None:
        return f"{name} as one of {prediction.alone_of:,} ranks"
    if len(prediction.cards) > 1:
        return f"each of {len(prediction.cards)} x {name}"
    return name


def cards_json(cards: Sequence[CardPeak]) -> list[dict[str, object]]:
    """Each card of each rank with its peak in bytes, predicted."""
    return [
        {
            "rank": card.rank,
            "card": f"cuda:{card.index}",
            "allocated_bytes": card.peak.allocated_bytes,
            "reserved_bytes": card.peak.reserved_bytes,
            "device_bytes": card.peak.device_bytes,
            "device_interval_bytes": list(card.peak.device_interval_bytes),
            "source": card.peak.source.value,
        }
        for card in cards
    ]
