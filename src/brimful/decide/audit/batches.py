"""Findings about what is in a batch, and in a step."""

from brimful.decide.audit.observed import Observed, Texts, replacement
from brimful.units import counted, format_share

DROPPED_SHARE = 0.01  # of the data set, never trained on in an epoch
SHORT_BATCH_SHARE = 0.5  # of the batch size: a last batch under this is a short one
# in longer epochs one short batch is less than 2 % of the steps and does not matter
SHORT_BATCH_STEPS = 50


def hidden_cap(observed: Observed) -> Texts:
    """The loader's largest batch is smaller than requested, and neither the data set's end, nor
    ranks, nor accumulation make up for it (a batch size that is meant over all ranks and
    micro-batches is no cap)."""
    asked, given, replaced = observed.asked, observed.given, observed.replaced("batch_size")
    if asked is None or given is None or (given >= asked and replaced is None):
        return None
    # another finding
    exceeds = observed.length is not None and observed.length < asked and given >= observed.length
    if replaced is not None and not exceeds:
        return replacement(replaced, "batch size", f"memory and speed are those of {given:,}.")
    if exceeds or given * (observed.batches_per_step or 1) * len(observed.sample.reports) == asked:
        return None
    return (
        f"You asked for a batch size of {asked:,}, and the loader gives batches of {given:,}.",
        "Something between the flag and the loader caps or replaces it; memory and speed are "
        f"those of {given:,}.",
        "Look for min(), max() or a fixed number where the DataLoader is made, or ask for "
        f"{given:,}.",
    )


def hidden_accumulation(observed: Observed) -> Texts:
    """The median step takes another number of batches than requested (by default one). Several
    training loaders that a script reads side by side give one batch each to a step: no finding."""
    got = observed.batches_per_step
    value = observed.requested.get("accumulation", 1)
    asked = int(value) if isinstance(value, int | float) else 1
    if not got or got in (asked, asked * len(observed.loaders)):
        return None
    effective = observed.sample.samples_per_step
    whole = f" ({counted(effective, 'sample')})" if effective else ""
    worst = observed.report.worst_batch
    if worst is not None and worst.mean_samples is not None:
        whole += " where each is as large as the largest"
    if (replaced := observed.replaced("accumulation")) is not None:
        does = (
            f"{got} batches go into each optimizer step{whole}, and the learning rate acts on all."
        )
        return replacement(replaced, "accumulation", does)
    optimizers = observed.report.optimizers
    # Without a DataLoader batches are counted by backward passes, which several optimizers or a
    # closure need more of.
    if observed.loader is None and (len(optimizers) != 1 or optimizers[0].uses_closure):
        return None
    flag = (
        f"you asked for {asked}"
        if "accumulation" in observed.requested
        else "the command asks for no accumulation"
    )
    explanation = (
        "The learning rate acts on the gradients of all of them, so it is tuned for that "
        "effective batch size."
    )
    if got > asked and observed.asked is not None and effective == observed.asked:
        explanation = (
            f"A step sees the {counted(effective or 0, 'sample')} asked for, but memory and "
            "speed are "
            "those of "
            f"a batch of {observed.given:,}."
        )
    suggestion = "If it is meant, ask for it with a flag"
    if "accumulation" in observed.requested:
        suggestion = "Look where the script counts its batches, and whether that number reaches it"
    return (
        f"{got} {'batches' if observed.loader else 'backward passes'} go into each optimizer "
        f"step{whole}, and {flag}.",
        explanation,
        f"{suggestion}; when the batch size grows, divide the accumulation by the same factor to "
        "keep the effective one.",
    )


def several_loaders(observed: Observed) -> Texts:
    """Of loaders that a step reads side by side, some have batches of another size than the one
    requested."""
    asked, samples = observed.asked, observed.sample.samples_per_step or 0
    report = observed.report
    sizes = [
        loader.batch_size or 0 for loader in report.loaders if loader.batches_seen >= report.steps
    ]
    ranks = observed.sample.trial.device.ranks or len(observed.sample.reports)
    if samples != sum(sizes) * ranks or asked not in sizes or {asked} == {*sizes}:
        return None
    return (
        f"{counted(samples, 'sample')} go into each step, and the batch size asked for is "
        f"{asked:,}: {len(sizes)} loaders give batches of {' and '.join(map('{:,}'.format, sizes))}"
        " side by side.",
        f"Memory, speed and the learning rate are those of {samples:,}.",
        "Where that is not meant, look where the other loader takes its batch size from.",
    )


def batch_exceeds_dataset(observed: Observed) -> Texts:
    """The batch size in force is larger than the data set (of this rank)."""
    size = (observed.loader.batch_size if observed.loader else None) or observed.asked
    if size is None or observed.length is None or size <= observed.length:
        return None
    return (
        f"The batch size is {size:,}, and the data set has {counted(observed.length, 'sample')}.",
        f"Every batch size above {observed.length:,} is the same batch of {observed.length:,}: "
        "comparing "
        "them compares nothing, and an epoch is one step.",
        f"Use at most {observed.length:,}; smaller batches give more steps an epoch.",
    )


def evaluation_batch_exceeds_dataset(observed: Observed) -> Texts:
    """The batch size of an evaluation is larger than its data set."""
    over = [
        loader
        for loader in observed.evaluations
        if loader.batch_size and loader.dataset_length and loader.batch_size > loader.dataset_length
    ]
    if not over:
        return None
    size, length = over[0].batch_size or 0, over[0].dataset_length or 0
    explanation = (
        f"Every evaluation batch size above {length:,} is the same batch of {length:,}, in "
        "memory too."
    )
    if over[0].drop_last:
        explanation = "With drop_last the loader gives no batch at all: nothing is evaluated."
    return (
        f"The evaluation batch size is {size:,}, and the evaluation set has "
        f"{counted(length, 'sample')}.",
        explanation,
        f"Use at most {length:,} for evaluation.",
    )


def split_batch(observed: Observed) -> Texts:
    """nn.DataParallel splits the loader's batch over cards, and a card's part is not the batch size
    that was asked for."""
    cards, given = (
        max((report.split_over for report in observed.sample.reports), default=1),
        observed.given,
    )
    if cards < 2 or not given or -(-given // cards) == observed.asked:
        return None
    return (
        f"A batch of {given:,} is split over {cards} cards (nn.DataParallel): "
        f"{-(-given // cards):,} a card.",
        f"Batch normalization and memory see {counted(-(-given // cards), 'sample')}; the "
        "learning rate "
        f"acts on {given:,}.",
        f"For {given:,} on each card ask for {given * cards:,}, and judge the learning rate for "
        "that. DistributedDataParallel is faster: it does not copy the model at every step.",
    )


def remainder(observed: Observed) -> Texts:
    """Samples that drop_last leaves out, if over 1 % of the data set; else a last batch of one
    sample, or of under half the batch size in an epoch of at most 50 steps."""
    loader = observed.loader
    if (
        loader is None
        or not loader.batch_size
        or not observed.length
        or observed.length < loader.batch_size
    ):
        return None
    size, length = loader.batch_size, observed.length
    rest = length % size
    if rest == 0:
        return None
    if loader.drop_last:
        if rest <= DROPPED_SHARE * length:
            return None
        explanation = "Where the loader shuffles, they are others in each epoch."
        if loader.sampler == "SequentialSampler":
            explanation = "The loader does not shuffle: they are never trained on."
        return (
            f"{rest:,} of {length:,} samples ({format_share(rest / length)}) are dropped in "
            "every epoch (drop_last).",
            explanation,
            _better_size(size, length),
        )
    steps = length // size + 1
    if rest != 1 and (rest >= SHORT_BATCH_SHARE * size or steps > SHORT_BATCH_STEPS):
        return None
    fails = (
        "Its gradient is noisier" if rest > 1 else "Batch normalization fails on a single sample"
    )
    weighs = (
        f"its step has as much weight as the other {steps - 1}"
        if observed.batches_per_step == 1
        else "in its step it may have as much weight as a whole batch"
    )
    return (
        f"The last batch of every epoch has {rest:,} of {size:,} samples.",
        f"{fails}, and {weighs}.",
        _better_size(size, length) + " Or use drop_last=True.",
    )


def _better_size(size: int, length: int) -> str:
    """The batch size nearest to `size` that leaves nothing over, within a quarter of it, else what
    little it can do."""
    near = [
        other for other in range(max(1, size * 3 // 4), size * 5 // 4 + 1) if length % other == 0
    ]
    if not near:
        return "No batch size near this one divides the data set; a smaller batch leaves less over."
    return (
        f"A batch size of {min(near, key=lambda other: abs(other - size)):,} leaves nothing over."
    )
