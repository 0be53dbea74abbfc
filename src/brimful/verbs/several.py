"""What a prediction says of each card where there are several: of one rank or of many."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from brimful.decide.cards import worst_of
from brimful.decide.memory.fit import Card
from brimful.decide.memory.search_traced import MemoryConclusion
from brimful.units import format_bytes
from brimful.values import CardPeak, Diagnostic, PhasePeak, TrialResult
from brimful_inside.simulator.replay import Played

if TYPE_CHECKING:
    from brimful.verbs.imaginary import Tracer

__all__ = ["about_ranks", "card_peaks", "peaks_seen", "played_at"]


def played_at(tracer: Tracer, batch_size: int | None, card: Card) -> Played | None:
    """What the traces at a batch size show on `card`: of several cards the worst. None if there is no trace."""
    cards = tracer.cards(batch_size)
    if cards:
        return worst_of([card.play(one.trace) for one in cards])
    trace = tracer.trace(batch_size)
    return None if trace is None else card.play(trace)


def card_peaks(tracer: Tracer, conclusion: MemoryConclusion | None, batch_size: int | None) -> tuple[CardPeak, ...]:
    """The peak of every card of every rank at a batch size; () where there is but one card."""
    card = replace(tracer.card, capacity_bytes=None)
    if batch_size in tracer.samples:
        cards = tracer.cards(batch_size)
        return tuple(CardPeak(one.rank, one.index, card.estimate(card.play(one.trace).peak)) for one in cards)
    labels = next((found for size in tracer.samples if (found := tracer.cards(size))), ())
    if conclusion is None or conclusion.laws is None or batch_size is None or len(labels) < 2:
        return ()
    played = conclusion.laws.play_cards_at(batch_size, card.settings)
    if len(played) != len(labels):
        return ()
    return tuple(CardPeak(one.rank, one.index, card.estimate(p.peak)) for one, p in zip(labels, played, strict=True))


def peaks_seen(sample: TrialResult) -> dict[str, PhasePeak]:
    """The peak of every imaginary card of every rank in a trial, where there are several."""
    seen = {f"rank {r.rank}, cuda:{card.index}": card.peak for r in sample.reports for card in r.cards}
    return seen if len(seen) > 1 else {}


def about_ranks(sample: TrialResult) -> list[Diagnostic]:
    """What has to be said where ranks share a machine, or one of them was started alone."""
    found = []
    device = sample.trial.device
    if device.ranks is not None:
        found.append(
            Diagnostic(
                "one-rank-alone",
                f"rank {device.as_rank} of {device.ranks} was started, without the others",
                "its memory is predicted; what other ranks would have told it on the host is taken to be what it knows itself",
                "",
            )
        )
    if any(report.communicators for report in sample.reports):
        groups = max(len(report.communicators) for report in sample.reports)
        found.append(
            Diagnostic(
                "nccl-assumed",
                f"NCCL's own buffers on the card are assumed, for {groups} process group{'s' if groups > 1 else ''}",
                "they depend on the links between the cards, and are counted with the context",
                "",
            )
        )
    return found + _strays(sample)


def _strays(sample: TrialResult) -> list[Diagnostic]:
    """Ranks that put something on a card of another rank, where it adds to what that one needs."""
    if len(sample.reports) < 2:
        return []
    found = []
    for report in sample.reports:
        own = max(report.cards, key=lambda card: card.peak.reserved_bytes or 0, default=None)
        for card in report.cards:
            others = [r.rank for r in sample.reports if r is not report and any(c.index == card.index for c in r.cards)]
            if own is not None and card.index != own.index and others:
                found.append(
                    Diagnostic(
                        "stray-card",
                        f"rank {report.rank} works on cuda:{own.index} and holds {format_bytes(card.peak.reserved_bytes or 0)} "
                        f"on cuda:{card.index} as well, which is rank {others[0]}'s",
                        "that card needs the memory of both, and a CUDA context for each; the peaks here are each rank's own",
                        "call torch.cuda.set_device(local_rank) first, and load checkpoints with map_location",
                    )
                )
    return found
