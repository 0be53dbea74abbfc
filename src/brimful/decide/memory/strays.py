"""What a rank holds on another rank's card: a checkpoint that was loaded without `map_location`,
or a tensor that was made before `torch.cuda.set_device`."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from brimful.units import counted, format_bytes
from brimful.values import Diagnostic, Report


class Stray(NamedTuple):
    rank: int
    index: int  # of the card, as in cuda:0
    reserved_bytes: int


def strays(reports: Sequence[Report]) -> list[Stray]:
    """On cards that other ranks work on; a rank works on the card where it reserves most."""
    homes = {
        report.rank: max(report.cards, key=lambda card: card.peak.reserved_bytes or 0).index
        for report in reports
        if report.cards
    }
    return [
        Stray(report.rank, card.index, card.peak.reserved_bytes or 0)
        for report in reports
        for card in report.cards
        if card.index != homes[report.rank] and card.index in homes.values()
    ]


def on_the_fullest(all_strays: Sequence[Stray]) -> list[int]:
    """The bytes of each stray on the card that has most of them."""
    by_card: dict[int, list[int]] = defaultdict(list)
    for stray in all_strays:
        by_card[stray.index].append(stray.reserved_bytes)
    return max(by_card.values(), key=sum, default=[])


def about_strays(reports: Sequence[Report]) -> list[Diagnostic]:
    """One sentence for each card that several ranks hold memory on."""
    all_strays = strays(reports)
    return [
        Diagnostic(
            "stray-card",
            f"cuda:{index} holds memory of {counted(len(others), 'other rank')} as well, up to "
            f"{format_bytes(max(others))} and a CUDA context each",
            "that card needs the memory of all of them; its peak counts it",
            "call torch.cuda.set_device(local_rank) first, and load checkpoints with map_location",
        )
        for index in sorted({stray.index for stray in all_strays})
        for others in [[stray.reserved_bytes for stray in all_strays if stray.index == index]]
    ]
