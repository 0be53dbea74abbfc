"""Findings about how data are drawn and loaded."""

import statistics

from brimful.decide.audit.observed import Observed, Texts, replacement
from brimful.decide.loading import workers_needed
from brimful.units import counted, format_duration, format_share

LOADER_BOUND_SHARE = 0.20  # of a step's time: below this, better loading could save a fifth at most
REPEATED_SHARE = 0.10  # of the batches of an epoch
LONG_EVALUATION_SHARE = 0.25  # of an epoch
UNDRAWN_SHARE = 0.01  # of an epoch's draws that are repeats


def repeated_batches(observed: Observed) -> Texts:
    """Within one epoch, over a tenth of the batches (and two at least) hold the very values of an
    earlier one; those that brimful made of the largest samples do not count."""
    if observed.loader is None:
        return None
    of_workers = observed.loader.draws.checksums if observed.loader.draws else []
    worst = observed.report.worst_batch
    # where nobody knows where the first epoch ends
    endless = observed.loader.length is None and observed.loader.iterations > 1
    if not of_workers and (endless or (worst is not None and worst.indices)):
        return None
    one_epoch = [batch.checksum for batch in observed.loader.batches[: observed.loader.length]]
    sums = of_workers or [checksum for checksum in one_epoch if checksum is not None]
    distinct = len(set(sums))
    if len(sums) - distinct < 2 or len(sums) - distinct <= REPEATED_SHARE * len(sums):
        return None
    workers, states = (
        observed.loader.workers,
        observed.loader.draws.random_states if observed.loader.draws else [],
    )
    problem = f"{distinct} of {len(sums)} batches of an epoch are distinct."
    if workers > 1 and states:
        return (
            problem,
            *_copied(
                workers, states, bool(observed.loader.draws and observed.loader.draws.seeds_workers)
            ),
        )
    explanation = "The same samples are made several times in one epoch."
    if workers > 1:
        explanation = (
            f"The {workers} loader workers draw the same random numbers: each process has a copy "
            "of one random state (NumPy's or Python's), so the same samples are made several "
            "times."
        )
    return (
        problem,
        explanation,
        "Draw random numbers from torch (its workers are seeded apart), or seed the others in "
        "worker_init_fn with torch.initial_seed().",
    )


def _copied(workers: int, states: list[list[str]], seeds_workers: bool) -> tuple[str, str]:
    """Where the data set holds a random state, of which each worker has a copy."""
    path, kind = states[0]
    where = f"torch.utils.data.get_worker_info().{path}"
    anew = {
        "random.Random": f"{where}.seed(torch.initial_seed())",
        "torch.Generator": f"{where}.manual_seed(torch.initial_seed())",
        "numpy.random.RandomState": f"{where}.seed(torch.initial_seed() % 2**32)",
    }.get(kind, f"{where} = numpy.random.default_rng(torch.initial_seed())")
    explanation = (
        f"Each of the {workers} loader workers has a copy of {path}, a {kind}, and all copies "
        "draw the same numbers."
    )
    if seeds_workers:
        return (
            f"{explanation} The loader's worker_init_fn does not seed it apart.",
            f"Add to worker_init_fn: {anew}",
        )
    return explanation, f"Give the DataLoader a worker_init_fn that calls {anew}"


def undrawn_samples(observed: Observed) -> Texts:
    """An epoch draws some samples several times and others not at all: its sampler draws with
    replacement, or its data set ignores the index and picks at random."""
    draws, length = (
        (observed.loader.draws, observed.loader.dataset_length) if observed.loader else (None, None)
    )
    if draws is None or not length:
        return None
    if draws.picks_at_random:
        share = 1 - (1 - 1 / length) ** length
        return (
            f"{draws.dataset} ignores the index that it is asked for and picks a sample at "
            "random: an epoch meets about "
            f"{format_share(share)} of {counted(length, 'sample')}.",
            "Computed for samples that are picked equally often; the others are not trained on "
            "in that epoch.",
            "Pick by the index, and let shuffle=True draw the order: then each sample comes once "
            "an epoch.",
        )
    if draws.drawn is None or draws.distinct is None or observed.loader is None:
        return None
    # a sampler that shares an epoch among ranks gives each its part, some filled up
    part = length if draws.drawn >= length else length // observed.report.world_size
    if draws.distinct >= (1 - UNDRAWN_SHARE) * min(draws.drawn, part):
        return None
    return (
        f"An epoch draws {draws.distinct:,} of {length:,} samples "
        f"({format_share(draws.distinct / length)}).",
        f"{observed.loader.sampler} draws some several times; the other samples are not trained on "
        "in that epoch.",
        "If such draws are not meant, use shuffle=True: then each sample comes once an epoch.",
    )


def loader_bound(observed: Observed) -> Texts:
    """Over a fifth of the measured steps' time was spent waiting for data."""
    share, steps = observed.sample.loading_share, observed.sample.step_s
    if share is None or share <= LOADER_BOUND_SHARE or not steps or observed.loader is None:
        return None
    step_s, workers, cores = (
        statistics.fmean(steps),
        observed.loader.workers,
        observed.machine.cores if observed.machine else None,
    )
    needed = workers_needed(step_s, share * step_s, workers)
    if needed is None:
        suggestion = (
            "Loading takes nearly all the time: cache decoded samples, or make loading cheaper; "
            "workers alone will not do."
        )
    elif cores is None or needed <= max(
        cores, workers
    ):  # loading that waits for a disk could use more, which nothing shows
        suggestion = f"Set num_workers={needed}."
    else:
        suggestion = (
            f"It would take {counted(needed, 'worker')} and this machine has "
            f"{counted(cores, 'core')}: "
            "cache decoded samples, or make loading itself cheaper."
        )
    with_workers = counted(workers, "loader worker") if workers else "no loader workers"
    return (
        f"{format_share(share)} of a step is spent waiting for data, with {with_workers}.",
        "The device stands idle in that time; a larger batch does not help.",
        suggestion,
    )


def too_many_workers(observed: Observed) -> Texts:
    """All ranks' training loaders have more worker processes than this machine has cores for
    brimful."""
    cores = observed.machine.cores if observed.machine else None
    each = [
        max((loader.workers for loader in report.loaders), default=0)
        for report in observed.sample.reports
    ]
    if not cores or sum(each) <= cores:
        return None
    ranks = f" ({each[0]} in each of {len(each)} ranks)" if len(each) > 1 else ""
    most = cores // len(each)
    return (
        f"{sum(each)} loader workers{ranks} share {counted(cores, 'core')} of this machine.",
        "They take the processor from each other and from the training, and each holds memory of "
        "its own.",
        f"Set num_workers={most}{' in each rank' if len(each) > 1 else ''}, or less; more only "
        "where workers wait for a disk.",
    )


def idle_workers(observed: Observed) -> Texts:
    """A loader has more workers than batches in an epoch."""
    idle = [
        loader
        for loader in (*observed.loaders, *observed.evaluations)
        if loader.length is not None and 0 < loader.length < loader.workers
    ]
    if not idle:
        return None
    loader = max(idle, key=lambda loader: loader.workers - (loader.length or 0))
    role, batches = (
        "training" if loader.role == "train" else "evaluation",
        counted(loader.length or 0, "batch", "batches"),
    )
    return (
        f"An epoch of the {role} loader has {batches}, and {counted(loader.workers, 'worker')}.",
        f"A worker makes whole batches, so {loader.workers - (loader.length or 0)} of them make "
        "none "
        "and take memory.",
        f"Set num_workers={loader.length} or less for it, or make its batches smaller.",
    )


def replaced_workers(observed: Observed) -> Texts:
    """Another number of loader workers is in force, or of batches that each makes ahead, than the
    script asks for; fewer on a machine of fewer cores are no finding."""
    workers, ahead = observed.replaced("num_workers"), observed.replaced("prefetch_factor")
    cores = observed.machine.cores if observed.machine is not None else None
    if workers is not None and (cores is None or workers.requested <= cores):
        return replacement(workers, "number of loader workers", "batches are made by so many.")
    return replacement(ahead, "prefetch factor", "so many are made ahead.") if ahead else None


def long_evaluation(observed: Observed) -> Texts:
    """Evaluation takes over a quarter of an epoch, if there is one an epoch, by the measured time
    of its batches."""
    steps, per_step = observed.sample.step_s, observed.batches_per_step
    batches = observed.loader.length if observed.loader else None
    timed = [
        (loader.length, loader.batch_s)
        for loader in observed.evaluations
        if loader.length and loader.batch_s
    ]
    if not steps or not per_step or not batches or not timed:
        return None
    train_s = statistics.median(steps) * batches / per_step
    eval_s = sum(length * seconds for length, seconds in timed)
    share = eval_s / (eval_s + train_s)
    if share <= LONG_EVALUATION_SHARE:
        return None
    count = sum(length for length, _ in timed)
    return (
        f"Evaluation takes {format_share(share)} of an epoch: "
        f"{counted(count, 'batch', 'batches')} in "
        f"{format_duration(eval_s)}, and training {format_duration(train_s)}.",
        "Computed from the measured times of a batch and of a step, assuming one evaluation an "
        "epoch.",
        "Use a larger evaluation batch size (it keeps no activations), torch.inference_mode(), "
        "fewer samples, or evaluate less "
        "often.",
    )
