"""What a prediction warns of: what its trials noticed, and what the search could not know."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from brimful.decide.audit.findings import findings
from brimful.decide.loaders_seen import largest_batch, loaders, samples_of
from brimful.decide.memory.leaks import memory_that_grows
from brimful.decide.memory.search_traced import MemoryConclusion
from brimful.units import format_bytes, format_duration, noun_of
from brimful.values import Diagnostic, Estimate, PeakEstimate, TrialResult, Verdict
from brimful.verbs.imaginary import Tracer, search_notes
from brimful.verbs.long_evaluation import seen_once
from brimful.verbs.results import ignores_the_batch_size

_NOT_MONOTONE = (
    "how allocations share segments changes from size to size, or the script goes another way there"
)


@dataclass(frozen=True)
class Answer:
    """The peak of a command at a size, and the search it comes from."""

    size: int | None  # the batch size, or what else was unknown; None: the command as it stands
    verdict: Verdict
    peak: PeakEstimate | None
    phases: dict[str, PeakEstimate]
    retries_per_step: float | None = None  # how often cached memory is given back to go on
    giving_back_s: Estimate | None = None  # the time of a step that this takes
    conclusion: MemoryConclusion | None = None  # None: nothing was searched


def warnings_of(tracer: Tracer, answer: Answer) -> list[Diagnostic]:
    """All warnings, the ones about the question before those of the trials."""
    result = tracer.representative()
    return [
        *_about_the_batch_size(tracer, answer, result),
        *_about_the_budget(tracer, answer),
        *(search_notes(answer.conclusion) if answer.conclusion else []),
        *_about_ranks(result),
        *_about_the_trial(result),
        *([seen_once(tracer.evaluation_of)] if tracer.evaluation_of is not None else []),
        *_growth(tracer, answer),
    ]


def _about_the_batch_size(
    tracer: Tracer, answer: Answer, result: TrialResult
) -> Iterator[Diagnostic]:
    asked, length, peak = (
        answer.size if tracer.in_batches else None,
        tracer.dataset_length(),
        answer.peak,
    )
    if asked and length and asked > length:
        explanation = (
            f"the script would train with batches of {length:,}, and the prediction is for that"
        )
        if any(loader.drop_last for loader in loaders(result, "train")):
            explanation = (
                "with drop_last the loader gives no batch: nothing trains; the prediction is "
                f"for batches of {length:,}"
            )
        yield Diagnostic(
            "batch-exceeds-dataset",
            f"you asked for a batch of {asked:,} and the data set has {length:,} samples",
            explanation,
            f"ask for {length:,} or less",
        )
    if peak is not None and peak.reserved_bytes == 0:
        yield Diagnostic(
            "nothing-on-the-card",
            "the script put nothing on the card",
            "it trains on the host, so no batch size says anything about the card",
            'move the model and its batches there: .to("cuda")',
        )
    cap = answer.conclusion.estimate.loader_cap if answer.conclusion else None
    if tracer.in_batches and (
        answer.conclusion is None or not answer.conclusion.estimate.ignores_batch_size
    ):
        yield from _hidden_cap(tracer, None if cap is not None and asked == cap else asked)
    if answer.conclusion and answer.conclusion.estimate.ignores_batch_size:
        error = ignores_the_batch_size(tracer.command)
        yield Diagnostic("ignores-batch-size", error.problem, error.explanation, error.suggestion)


def _hidden_cap(tracer: Tracer, asked: int | None) -> Iterator[Diagnostic]:
    """Where the loader gave less than a trial requested and the batch size in question is above
    that.
    """
    completed = {size: one for size, one in tracer.completed().items() if size}
    size, result = max(completed.items(), default=(0, None))
    if result is None or not any(
        one.code == "hidden-cap" for one in findings(result, {"batch_size": size})
    ):
        return
    given = largest_batch(result) or 0
    if given and (asked is None or asked > given):
        yield Diagnostic(
            "hidden-cap",
            f"at a batch size of {size:,} the loader gives batches of {given:,}",
            f"something between the flag and the loader caps it: above {given:,} neither memory "
            "nor speed changes",
            "look for min(), max() or a fixed number where the DataLoader is made; `brimful "
            "audit` shows what the loader gives",
        )


def _gives_cache_back(answer: Answer) -> Diagnostic:
    times, longer = answer.retries_per_step or 0.0, answer.giving_back_s
    often = "" if not times else " once a step" if times == 1 else f" {times:.2g} times a step"
    what = "steps are slower than predicted"
    if longer is not None:
        ends = " to ".join(
            format_duration(end) for end in (longer.low, longer.high) if end is not None
        )
        what = (
            f"a step takes some {format_duration(longer.value)} ({ends}, {longer.source.value}) "
            "longer than predicted"
        )
    return Diagnostic(
        "gives-cache-back",
        f"the allocator runs out of memory and gives its cached memory back{often}",
        f"it goes on, and {what}",
        "a smaller batch size, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )


def _about_the_budget(tracer: Tracer, answer: Answer) -> Iterator[Diagnostic]:
    peak, budget, asked = answer.peak, tracer.budget, answer.size
    if (answer.retries_per_step or answer.giving_back_s) and answer.verdict != Verdict.DOES_NOT_FIT:
        yield _gives_cache_back(answer)
    largest = answer.conclusion.estimate.largest_batch_size if answer.conclusion else None
    in_force = tracer.in_force(answer.conclusion, asked) if tracer.in_batches else asked
    limited_by = answer.conclusion.estimate.limited_by if answer.conclusion else None
    if (
        answer.verdict == Verdict.FITS
        and in_force
        and largest
        and in_force > largest
        and limited_by == "budget"
    ):
        yield Diagnostic(
            "a-smaller-one-does-not-fit",
            f"{noun_of(tracer.unknown)} {in_force:,} fits, and {largest + 1:,} does not",
            _NOT_MONOTONE,
            f"{largest:,}, or exactly {in_force:,}",
        )
    if peak is None or answer.verdict == Verdict.FITS:
        return
    if peak.device_bytes <= budget.total_bytes:
        yield Diagnostic(
            "over-budget-under-card",
            f"{format_bytes(peak.device_bytes)} is under the card's "
            f"{format_bytes(budget.total_bytes)}",
            f"and its upper bound {format_bytes(peak.device_interval_bytes[1])} is over the "
            f"budget ({budget.why}): "
            "it may run, and may not",
            "allow a larger share: --budget 100%",
        )
    if asked and largest and asked < largest:
        yield Diagnostic(
            "a-larger-one-fits",
            f"{noun_of(tracer.unknown)} {asked:,} does not fit, and {largest:,} does",
            _NOT_MONOTONE,
            f"{largest:,}, or a size well below this one",
        )


def _about_ranks(result: TrialResult) -> Iterator[Diagnostic]:
    """Where ranks share a machine, or one of them was started alone."""
    device = result.trial.device
    if device.ranks is not None:
        problem = f"rank {device.as_rank} of {device.ranks} was started, without the others"
        explanation = (
            "its memory is predicted; brimful assumes that other ranks would send what this rank "
            "has itself"
        )
        yield Diagnostic("one-rank-alone", problem, explanation, "")
    groups = max((len(report.communicators) for report in result.reports), default=0)
    if groups:
        problem = (
            f"NCCL's own buffers on the card are assumed, for {groups} process "
            f"group{'s' if groups > 1 else ''}"
        )
        yield Diagnostic(
            "nccl-assumed",
            problem,
            "they depend on the links between the cards, and count with the context",
            "",
        )
    for report in result.reports:
        own = max(report.cards, key=lambda card: card.peak.reserved_bytes or 0, default=None)
        for card in report.cards:
            others = [
                r.rank
                for r in result.reports
                if r is not report and any(c.index == card.index for c in r.cards)
            ]
            if own is not None and card.index != own.index and others:
                yield Diagnostic(
                    "stray-card",
                    f"rank {report.rank} works on cuda:{own.index} and holds "
                    f"{format_bytes(card.peak.reserved_bytes or 0)} "
                    f"on cuda:{card.index} as well, which is rank {others[0]}'s",
                    "that card needs the memory of both, and a CUDA context for each; the peaks "
                    "here are each rank's own",
                    "call torch.cuda.set_device(local_rank) first, and load checkpoints with "
                    "map_location",
                )


def _about_the_trial(result: TrialResult) -> Iterator[Diagnostic]:
    yield from (Diagnostic("trial-note", note, "", "") for note in result.notes)
    approximations = result.reports[0].approximations
    if approximations:
        shown = ", ".join(f"{name} ({count})" for name, count in sorted(approximations.items()))
        explanation = "brimful took an upper bound or an assumption in its place"
        suggestion = "the true peak can differ, and is lower as a rule"
        yield Diagnostic(
            "upper-bounds", f"only data or a card can settle: {shown}", explanation, suggestion
        )


def _growth(tracer: Tracer, answer: Answer) -> list[Diagnostic]:
    """What piles up from step to step or over an evaluation, by the completed trial whose batch
    size is nearest. What a whole evaluation keeps is much the same at every batch size."""
    completed = {size: one for size, one in tracer.completed().items() if one.reports}
    if not completed:
        return []
    size = min(completed, key=lambda n: abs(math.log((n or 1) / (answer.size or 1))))
    result, peak, evaluation = completed[size], answer.peak, answer.phases.get("eval")
    if result.peak is None or not result.peak.device_bytes:
        return []
    lengths = [samples_of(loader) or 0 for loader in loaders(result, "eval")]
    found = memory_that_grows(
        result.reports[0].growth,
        result.peak.device_bytes,
        evaluation.allocated_bytes + peak.device_bytes - peak.reserved_bytes
        if evaluation and peak
        else None,
        tracer.budget.bytes if answer.verdict == Verdict.FITS else None,
        max(lengths, default=0) or None,
    )
    other = f" (at a {noun_of(tracer.unknown)} of {size})" if size != answer.size else ""
    return [replace(one, problem=one.problem + other) for one in found]
