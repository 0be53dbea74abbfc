"""What an audit finds: each finding is a function of `_FINDERS`; its name is the code, its docstring the condition.

An ordinary, sound script meets none of them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from brimful.decide.loading import workers_needed
from brimful.decide.memory.leaks import memory_that_grows
from brimful.units import format_bytes, format_share
from brimful.values import Budget, Diagnostic, Machine, Report, Setting, TrialResult
from brimful_inside.wire import LoaderSeen

LOADER_BOUND_SHARE = 0.20  # of a step's time: below this, better loading could save a fifth at most
DROPPED_SHARE = 0.01  # of the data set, never trained on in an epoch
SHORT_BATCH_SHARE = 0.5  # of the batch size: a last batch under this is a short one
SHORT_BATCH_STEPS = 50  # in longer epochs one short batch is less than 2 % of the steps and does not matter
REPEATED_SHARE = 0.10  # of the batches of an epoch
IDLE_SHARE = 0.50  # of the budget
RATE_TOLERANCE = 0.01  # learning rates closer than this are the same
_Texts = tuple[str, str, str] | None


@dataclass(frozen=True)
class _Seen:
    """What all findings read: rank 0, whose loader stands for all."""

    sample: TrialResult
    report: Report
    requested: Mapping[str, Setting]
    loaders: tuple[LoaderSeen, ...]  # of training, those that were iterated
    loader: LoaderSeen | None  # the one that gave most batches
    budget: Budget | None
    machine: Machine | None

    @property
    def asked(self) -> int | None:
        """The requested batch size."""
        value = self.requested.get("batch_size")
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def learning_rate(self) -> float | None:
        """The learning rate asked for."""
        value = self.requested.get("lr")
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def given(self) -> int | None:
        """The largest batch that the loader gave, else its own batch_size."""
        if self.loader is None:
            return None
        return max((b.samples for b in self.loader.batches if b.samples is not None), default=self.loader.batch_size)

    @property
    def length(self) -> int | None:
        """Samples of an epoch, in this rank."""
        lengths = (self.loader.sampler_samples, self.loader.dataset_length) if self.loader else ()
        return next((length for length in lengths if length is not None), None)

    @property
    def batches_per_step(self) -> int | None:
        counts = self.report.micro_batches_per_step[self.report.warmup_steps :] or self.report.micro_batches_per_step
        return round(statistics.median(counts)) if counts else None


def findings(
    sample: TrialResult, requested: Mapping[str, Setting], budget: Budget | None = None, machine: Machine | None = None
) -> tuple[Diagnostic, ...]:
    """All findings of a trial, in the order of `CODES`; () for a sound script or a trial without a report."""
    if not sample.reports:
        return ()
    report = sample.reports[0]
    loaders = tuple(one for one in report.loaders if one.role == "train" and one.batches_seen > 0)
    loader = max(loaders, key=lambda one: one.batches_seen, default=None)
    seen = _Seen(sample, report, requested, loaders, loader, budget, machine)
    return tuple(Diagnostic(code, *texts) for code, find in zip(CODES, _FINDERS, strict=True) if (texts := find(seen)))


def hidden_cap(seen: _Seen) -> _Texts:
    """The loader's largest batch is smaller than requested, and neither the data set's end, nor ranks, nor accumulation make up
    for it (a batch size that is meant over all ranks and micro-batches is no cap)."""
    asked, given = seen.asked, seen.given
    if asked is None or given is None or given >= asked:
        return None
    exceeds = seen.length is not None and seen.length < asked and given >= seen.length  # another finding
    if exceeds or given * (seen.batches_per_step or 1) * len(seen.sample.reports) == asked:
        return None
    return (
        f"You asked for a batch size of {asked:,}, and the loader gives batches of {given:,}.",
        f"Something between the flag and the loader caps or replaces it; memory and speed are those of {given:,}.",
        f"Look for min(), max() or a fixed number where the DataLoader is made, or ask for {given:,}.",
    )


def hidden_accumulation(seen: _Seen) -> _Texts:
    """The median step takes another number of batches than requested (by default one). Several training loaders that a script
    reads side by side give one batch each to a step: no finding."""
    got = seen.batches_per_step
    value = seen.requested.get("accumulation", 1)
    asked = int(value) if isinstance(value, int | float) else 1
    if not got or got in (asked, asked * len(seen.loaders)):
        return None
    optimizers = seen.report.optimizers
    # Without a DataLoader batches are counted by backward passes, which several optimizers or a closure need more of.
    if seen.loader is None and (len(optimizers) != 1 or optimizers[0].uses_closure):
        return None
    effective = seen.sample.samples_per_step
    whole = f" ({effective:,} samples)" if effective else ""
    flag = f"you asked for {asked}" if "accumulation" in seen.requested else "the command asks for no accumulation"
    explanation = "The learning rate acts on the gradients of all of them, so it is tuned for that effective batch size."
    if got > asked and seen.asked is not None and effective == seen.asked:
        explanation = (
            f"A step sees the {effective:,} samples asked for, but memory and speed are those of a batch of {seen.given:,}."
        )
    suggestion = "If it is meant, ask for it with a flag"
    if "accumulation" in seen.requested:
        suggestion = "Look where the script counts its batches, and whether that number reaches it"
    return (
        f"{got} {'batches' if seen.loader else 'backward passes'} go into each optimizer step{whole}, and {flag}.",
        explanation,
        f"{suggestion}; when the batch size grows, divide the accumulation by the same factor to keep the effective one.",
    )


def batch_exceeds_dataset(seen: _Seen) -> _Texts:
    """The batch size in force is larger than the data set (of this rank)."""
    size = (seen.loader.batch_size if seen.loader else None) or seen.asked
    if size is None or seen.length is None or size <= seen.length:
        return None
    return (
        f"The batch size is {size:,}, and the data set has {seen.length:,} samples.",
        f"Every batch size above {seen.length:,} is the same batch of {seen.length:,}: comparing them compares nothing, "
        "and an epoch is one step.",
        f"Use at most {seen.length:,}; smaller batches give more steps an epoch.",
    )


def repeated_batches(seen: _Seen) -> _Texts:
    """Within one epoch, over a tenth of the batches (and two at least) hold the very values of an earlier one; those that
    brimful made of the largest samples do not count."""
    if seen.loader is None or (seen.report.worst_batch is not None and seen.report.worst_batch.indices):
        return None
    one_epoch = seen.loader.batches[: seen.loader.length]
    if seen.loader.length is None and seen.loader.iterations > 1:
        return None  # nobody knows where the first epoch ends
    sums = [batch.checksum for batch in one_epoch if batch.checksum is not None]
    distinct = len(set(sums))
    if len(sums) - distinct < 2 or len(sums) - distinct <= REPEATED_SHARE * len(sums):
        return None
    explanation = "The same samples are made several times in one epoch."
    if seen.loader.workers > 1:
        explanation = (
            f"The {seen.loader.workers} loader workers draw the same random numbers: each process has a copy of one random "
            "state (NumPy's or Python's), so the same samples are made several times."
        )
    return (
        f"{distinct} of {len(sums)} batches of an epoch are distinct.",
        explanation,
        "Draw random numbers from torch (its workers are seeded apart), or seed the others in worker_init_fn with "
        "torch.initial_seed().",
    )


def loader_bound(seen: _Seen) -> _Texts:
    """Over a fifth of the measured steps' time was spent waiting for data."""
    share, steps = seen.sample.loading_share, seen.sample.step_s
    if share is None or share <= LOADER_BOUND_SHARE or not steps or seen.loader is None:
        return None
    step_s, workers, cores = statistics.fmean(steps), seen.loader.workers, seen.machine.cores if seen.machine else None
    needed = workers_needed(step_s, share * step_s, workers)
    if needed is None:
        suggestion = (
            "Loading takes nearly all the time: cache decoded samples, or make loading cheaper; workers alone will not do."
        )
    elif cores is None or needed <= max(cores, workers):  # loading that waits for a disk could use more, which nothing shows
        suggestion = f"Set num_workers={needed}."
    else:
        suggestion = (
            f"It would take {needed} workers and this machine has {cores} cores: "
            "cache decoded samples, or make loading itself cheaper."
        )
    return (
        f"{format_share(share)} of a step is spent waiting for data, with {workers or 'no'} loader workers.",
        "The device stands idle in that time; a larger batch does not help.",
        suggestion,
    )


def remainder(seen: _Seen) -> _Texts:
    """Samples that drop_last leaves out, if over 1 % of the data set; else a last batch of one sample, or of under half the
    batch size in an epoch of at most 50 steps."""
    loader = seen.loader
    if loader is None or not loader.batch_size or not seen.length or seen.length < loader.batch_size:
        return None
    size, length = loader.batch_size, seen.length
    rest = length % size
    if rest == 0:
        return None
    if loader.drop_last:
        if rest <= DROPPED_SHARE * length:
            return None
        return (
            f"{rest:,} of {length:,} samples ({format_share(rest / length)}) are dropped in every epoch (drop_last).",
            "Without shuffling they are never trained on.",
            _better_size(size, length),
        )
    steps = length // size + 1
    if rest != 1 and (rest >= SHORT_BATCH_SHARE * size or steps > SHORT_BATCH_STEPS):
        return None
    return (
        f"The last batch of every epoch has {rest:,} of {size:,} samples.",
        f"Its gradient is noisier, and its step has as much weight as the other {steps - 1}."
        if rest > 1
        else "Batch normalization fails on a single sample, and its step has as much weight as the others.",
        _better_size(size, length) + " Or use drop_last=True.",
    )


def learning_rate(seen: _Seen) -> _Texts:
    """The requested learning rate is neither what a group of the optimizer was made with, nor where its schedule goes.

    A schedule (warm-up, decay, one cycle) is no finding, as the scheduler keeps the constructor's rate; nor is a rate that a
    script moves by hand.
    """
    value = seen.learning_rate
    if value is None or not seen.report.optimizers or any(one.relative_steps for one in seen.report.optimizers):
        return None
    in_force: list[float] = []
    for one in seen.report.optimizers:
        meant = one.initial_learning_rates + one.max_learning_rates
        if not meant and one.first_learning_rates != one.learning_rates:
            return None  # set by hand
        in_force += meant or one.first_learning_rates
    if not in_force:
        return None
    closest = min(in_force, key=lambda rate: abs(rate - value))
    if any(abs(rate - value) <= RATE_TOLERANCE * max(abs(rate), abs(value)) for rate in in_force):
        return None
    factor = f", {closest / value:.3g} times as much" if value else ""
    return (
        f"You asked for a learning rate of {value:g}, and {closest:g} is in force{factor}.",
        "Something scales or replaces it before the optimizer sees it (by the batch size, or the number of processes, say).",
        f"Look where the optimizer is made; ask for what gives {value:g}, or note that {closest:g} is what you train with.",
    )


def ignored_learning_rate(seen: _Seen) -> _Texts:
    """A learning rate was asked for, and the optimizer takes relative steps (Adafactor's default in most packages)."""
    relative = next((one for one in seen.report.optimizers if one.relative_steps), None)
    if seen.learning_rate is None or relative is None:
        return None
    return (
        f"You asked for a learning rate of {seen.learning_rate:g}, and {relative.name} ignores it: it takes relative steps.",
        "Its steps follow from their number (at most 0.01, falling with 1/√step) and the size of the parameters; "
        "every learning rate that you ask for trains alike.",
        "Make it with relative_step=False for the learning rate to be in force, or leave the flag out.",
    )


def memory_idle(seen: _Seen) -> _Texts:
    """On a card, the peak is under half of what may be used, and the data set has room for a larger batch."""
    peak = seen.sample.peak.device_bytes if seen.sample.peak else None
    if seen.budget is None or seen.budget.memory != "device" or not peak or peak >= IDLE_SHARE * seen.budget.bytes:
        return None
    if seen.length is not None and seen.given is not None and seen.given >= seen.length:
        return None
    return (
        f"The peak is {format_bytes(peak)}, {format_share(peak / seen.budget.bytes)} of the {format_bytes(seen.budget.bytes)} "
        "that may be used.",
        "There is room for a larger batch. A full card is not a goal in itself: a larger batch is often no faster.",
        "Measure whether it helps: brimful tune.",
    )


def memory_grows(seen: _Seen) -> _Texts:
    """On an imaginary card, each step or each batch of the evaluation leaves so much memory behind that it matters."""
    peak = seen.sample.peak
    if peak is None or not peak.device_bytes:
        return None
    grows = memory_that_grows(seen.report.growth, peak.device_bytes)
    found = [(one.problem, one.explanation, one.suggestion) for one in grows if one.code == "memory-grows"]
    if not found:
        return None
    problem, explanation, suggestion = (f"{text[:1].upper()}{text[1:]}." for text in map("; ".join, zip(*found, strict=True)))
    return problem, explanation, suggestion


_FINDERS: tuple[Callable[[_Seen], _Texts], ...] = (
    hidden_cap,
    hidden_accumulation,
    batch_exceeds_dataset,
    repeated_batches,
    loader_bound,
    remainder,
    learning_rate,
    ignored_learning_rate,
    memory_idle,
    memory_grows,
)

CODES = tuple(find.__name__.replace("_", "-") for find in _FINDERS)


def _better_size(size: int, length: int) -> str:
    """The batch size nearest to `size` that leaves nothing over, within a quarter of it, else what little it can do."""
    near = [other for other in range(max(1, size * 3 // 4), size * 5 // 4 + 1) if length % other == 0]
    if not near:
        return "No batch size near this one divides the data set; a smaller batch leaves less over."
    return f"A batch size of {min(near, key=lambda other: abs(other - size)):,} leaves nothing over."
