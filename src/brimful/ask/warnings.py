"""What a prediction warns of: what its trials noticed, and what the search could not know."""

import math
from collections.abc import Iterator

from brimful.ask.growth import about_growth
from brimful.ask.reading import CardView, MemoryAnswer
from brimful.ask.search import search_notes
from brimful.ask.shown_once import seen_once
from brimful.ask.traces import Trials
from brimful.decide.audit.findings import findings
from brimful.decide.loaders_seen import largest_batch, loaders
from brimful.decide.memory.gradients import unstepped_gradients
from brimful.decide.memory.intervals import COMPILED
from brimful.decide.memory.strays import about_strays
from brimful.decide.not_run import about_branches
from brimful.measure import accelerators
from brimful.measure.traces import cards_of, read_trace
from brimful.trials.results import OLD_TORCH, OLDEST_TORCH, ignores_the_batch_size
from brimful.units import counted, format_bytes, format_duration, format_interval, noun_of
from brimful.values import (
    Diagnostic,
    Epoch,
    Prediction,
    TrialResult,
    Verdict,
)

_NOT_MONOTONE = (
    "how allocations share segments changes from size to size, or the script goes another way there"
)

#: What stands in for something that only data or a card can tell (docs/how/imaginary_gpu.md).
_APPROXIMATIONS = {
    "bincount": "its length depends on data, so the least was taken",
    "cudnn workspace without benchmark": "assumed as large as measured with benchmark",
    "cudnn.benchmark in float32": "its trials, which take what is free for a moment, are not "
    "counted",
    "cudnn rnn reserve space": "not documented; as seen for an LSTM on an H200",
    "nested tensors in TransformerEncoder": "padded tensors were taken, which are larger",
    "flash_attn": "a stand-in answered its import: PyTorch's copy of its kernels ran",
    "flash_attn.bert_padding": "which tokens are padding depends on data, so all were kept",
    "paged optimizer states": "NVIDIA's driver moves them between host and card, so they are not "
    "counted on the card",
    "an optimizer's step on the host": "a stand-in ran; its time is that of a host that moves 40 "
    "GB/s (assumed)",
    "Triton kernel": "its launch was passed over; what it writes to was allocated before and is "
    "counted",
}
_BOUND = "at most, as its shape depends on data"


def warnings_of(view: CardView, answer: MemoryAnswer) -> list[Diagnostic]:
    """All warnings, the ones about the question before those of the trials."""
    result = view.trials.representative()
    return [
        *_about_the_batch_size(view.trials, answer, result),
        *_about_the_budget(view, answer),
        *(search_notes(answer.conclusion) if answer.conclusion else []),
        *_about_torch(result),
        *_about_ranks(result),
        *_about_the_trial(result),
        *seen_once(view.trials.shown_whole),
        *about_growth(view, answer),
        *about_branches(view.trials.session.results),
        *_about_gradients(view.trials, result),
    ]


def _about_gradients(trials: Trials, result: TrialResult) -> Iterator[Diagnostic]:
    if result.reports[0].unstepped:
        yield from unstepped_gradients(result, read_trace(result, trials.session.folder))


def _about_the_batch_size(
    trials: Trials, answer: MemoryAnswer, result: TrialResult
) -> Iterator[Diagnostic]:
    asked, length = answer.size if trials.in_batches else None, trials.dataset_length()
    asked = asked or result.reports[0].batch_asked
    estimate = answer.conclusion.estimate if answer.conclusion else None
    if asked and length and asked > length:
        explanation = f"the script would train with batches of {length:,}; brimful predicts those"
        if any(loader.drop_last for loader in loaders(result, "train")):
            explanation = (
                "with drop_last the loader gives no batch: nothing trains; brimful predicts "
                f"batches of {length:,}"
            )
        yield Diagnostic(
            "batch-exceeds-dataset",
            f"the batch size is {asked:,} and the data set has {counted(length, 'sample')}",
            explanation,
            f"take {length:,} or less",
        )
    if trials.in_batches and (estimate is None or not estimate.ignores_batch_size):
        cap = estimate.loader_cap if estimate else None
        yield from _hidden_cap(trials, None if cap is not None and asked == cap else asked)
    if estimate and estimate.ignores_batch_size:
        error = ignores_the_batch_size(trials.command)
        yield Diagnostic("ignores-batch-size", error.problem, error.explanation, error.suggestion)


def about_steps(prediction: Prediction, epoch: Epoch | None) -> list[Diagnostic]:
    """Where an epoch has fewer batches than the script accumulates for a step."""
    if epoch is None or prediction.speed is None or epoch.steps:
        return []
    smaller, at = prediction.largest_with_a_step, prediction.batch_size or 0
    return [
        Diagnostic(
            "no-whole-step",
            f"a step takes {prediction.speed.batches_per_step:g} batches, and an epoch has fewer: "
            "the script makes no update, unless it steps at the end of an epoch",
            "no trial saw what the script does there",
            (f"take a batch size of {smaller:,} or less, or " if smaller and smaller < at else "")
            + "accumulate fewer batches",
        )
    ]


def _hidden_cap(trials: Trials, asked: int | None) -> Iterator[Diagnostic]:
    """Where the loader gave less than a trial requested and the batch size in question is above
    that.
    """
    completed = {size: result for size, result in trials.completed().items() if size}
    if not completed:
        return
    size = max(completed)
    given = largest_batch(completed[size]) or 0
    if given and (asked is None or asked > given):
        hints = findings(completed[size], {"batch_size": size})
        yield from (finding for finding in hints if finding.code == "hidden-cap")


def _gives_cache_back(answer: MemoryAnswer) -> Diagnostic:
    times, longer = answer.retries_per_step or 0.0, answer.giving_back_s
    often = "" if not times else " once a step" if times == 1 else f" {times:.2g} times a step"
    slower = "steps are slower than predicted"
    if longer is not None:
        ends = [end if end is not None else longer.value for end in (longer.low, longer.high)]
        slower = (
            f"a step takes some {format_duration(longer.value)} "
            f"({format_interval(ends[0], ends[1], longer.value, format_duration)}, "
            f"{longer.source.value}) longer than predicted"
        )
    return Diagnostic(
        "gives-cache-back",
        f"PyTorch's memory is full, and it empties its cache{often}",
        f"the training goes on, and {slower}",
        "a smaller batch size, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )


def _limit_pytorch(view: CardView, unlimited_bytes: int) -> Diagnostic:
    share = (view.card.capacity_bytes or 0) / view.budget.total_bytes
    return Diagnostic(
        "limit-pytorch",
        f"it fits where PyTorch is limited to the budget; else PyTorch takes "
        f"{format_bytes(unlimited_bytes)} of the card",
        "PyTorch keeps freed memory as long as the card has more, and gives it back at a limit",
        f"torch.cuda.set_per_process_memory_fraction({math.floor(share * 1e4) / 1e4:g}) before the "
        "training",
    )


def _about_the_budget(view: CardView, answer: MemoryAnswer) -> Iterator[Diagnostic]:
    peak, budget, asked = answer.peak, view.budget, answer.size
    if (answer.retries_per_step or answer.giving_back_s) and answer.verdict != Verdict.DOES_NOT_FIT:
        yield _gives_cache_back(answer)
    estimate = answer.conclusion.estimate if answer.conclusion else None
    largest = estimate.largest_batch_size if estimate else None
    trials = view.trials
    in_force = trials.in_force(answer.conclusion, asked) if trials.in_batches else asked
    noun = noun_of(trials.unknown)
    if answer.verdict == Verdict.FITS:
        if answer.unlimited_bytes is not None:
            yield _limit_pytorch(view, answer.unlimited_bytes)
        limited = estimate is not None and estimate.limited_by == "budget"
        traced = [size for size in trials.results if largest and size and largest < size]
        smaller = min(traced, default=0)
        if limited and in_force and largest and 0 < smaller < in_force:
            yield Diagnostic(
                "a-smaller-one-does-not-fit",
                f"{noun} {in_force:,} fits, and {smaller:,} does not",
                _NOT_MONOTONE,
                f"{largest:,}, or exactly {in_force:,}",
            )
        return
    if peak is None:
        return
    if peak.device_bytes <= budget.total_bytes:
        yield Diagnostic(
            "over-budget-under-card",
            f"{format_bytes(peak.device_bytes)} is under the card's "
            f"{format_bytes(budget.total_bytes)}",
            f"and its upper bound {format_bytes(peak.device_interval_bytes[1])} is over the "
            f"budget ({budget.why}): it may run, and may not",
            "allow a larger share: --budget 100%",
        )
    if asked and largest and asked < largest:
        yield Diagnostic(
            "a-larger-one-fits",
            f"{noun} {asked:,} does not fit, and {largest:,} does",
            _NOT_MONOTONE,
            f"{largest:,}, or a size well below this one",
        )


def _about_torch(result: TrialResult) -> Iterator[Diagnostic]:
    yield from (found for found in findings(result, {}) if found.code == "ignored-setting")
    torch = result.reports[0].torch_version
    if accelerators.is_older(torch, OLDEST_TORCH):
        yield Diagnostic(
            "old-torch",
            OLD_TORCH.format(torch),
            "its allocator and workspaces are predicted as those of 2.6, which was not checked",
            "use a newer torch in the environment of the script",
        )


def _about_ranks(result: TrialResult) -> Iterator[Diagnostic]:
    """Where ranks share a machine, or one of them was started alone."""
    device = result.trial.device
    used = set(cards_of(result))  # a rank may see its own card alone, as its first
    if device.ranks is None and 0 < len(used) < device.cards:
        uses = "one" if len(used) == 1 else f"{len(used)}"
        cards, all_of_them = ("two", "both") if device.cards == 2 else (device.cards, "all of them")
        yield Diagnostic(
            "idle-cards",
            f"the command uses {uses} of the {cards} cards",
            "a script trains on several cards by a process for each, with DistributedDataParallel",
            f"torchrun --nproc-per-node {device.cards} … uses {all_of_them}, if the script trains "
            "so",
        )
    if device.ranks is not None:
        yield Diagnostic(
            "one-rank-alone",
            f"rank {device.as_rank} of {device.ranks} was started, without the others",
            "brimful predicts its memory, and assumes that other ranks send what this rank has "
            "itself",
            "",
        )
    groups = max((len(report.communicators) for report in result.reports), default=0)
    if groups:
        yield Diagnostic(
            "nccl-assumed",
            f"NCCL's own buffers on the card are assumed, for {counted(groups, 'process group')}",
            "they depend on the links between the cards, and count with the context",
            "",
        )
    yield from about_strays(result.reports)


def _about_the_trial(result: TrialResult) -> Iterator[Diagnostic]:
    yield from (Diagnostic("trial-note", note, "", "") for note in result.notes)
    reported = result.reports[0].approximations
    if any(name in COMPILED for name in reported):
        yield Diagnostic(
            "not-compiled",
            "compiled code is not modelled",
            "the trial ran the model as it is without torch.compile",
            "the numbers are of the same training without torch.compile",
        )
    approximations = sorted(name for name in reported if name not in COMPILED)
    if approximations:
        yield Diagnostic(
            "upper-bounds",
            "not known without data or a card: "
            + "; ".join(f"{name} ({_APPROXIMATIONS.get(name, _BOUND)})" for name in approximations),
            "the true peak can differ, and is lower as a rule",
            "",
        )
