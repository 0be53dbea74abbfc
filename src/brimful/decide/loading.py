"""How much of the host's memory loading may take: workers, batches made ahead, pinned memory, data
in memory, evaluation.

Arithmetic on values. It adds up bytes: each worker's own, each batch that is ready or kept, their
pinned copies, and data that is put into memory; over all ranks of a machine they stay under `SHARE`
of what is free.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from brimful.errors import DoesNotFit
from brimful.units import counted, format_bytes, format_duration
from brimful.values import Diagnostic, EffectiveSetting, Source

SHARE = 0.6  # of what is free, and of /dev/shm. Assumed: a training needs the rest for itself
# of that, where there is an evaluation, whose loader lives beside the training's. Assumed
TRAINING_SHARE = 0.75
# assumed, until a worker was measured: what a forked one comes to have of its own
WORKER_BYTES = 256 << 20
PREFETCH = 2  # PyTorch's own default
EVAL_TIMES = 3  # assumed: evaluation keeps no activations
_PINNED_TIMES = 2  # PyTorch's allocator of pinned memory takes the next power of two
# what more workers must bring. Assumed: less is within the noise of so short a measurement
_GAIN = 0.1
_STARVED = 0.02  # of a step: under this share of computing, p / c shows nothing any more


@dataclass(frozen=True)
class Host:
    """What the ranks on one machine share, measured once. `taken_…`: by what was planned before."""

    free_bytes: int  # what the system has left or the cgroup leaves, whichever is less
    cores: int  # by affinity and cgroup quota
    shm_free_bytes: int | None  # None: there is no /dev/shm, and batches go another way
    ranks: int = 1
    cards: int = 0  # that these ranks train on
    taken_bytes: int = 0
    taken_shm_bytes: int = 0

    @property
    def allowed_bytes(self) -> int:
        return int(SHARE * self.free_bytes)

    @property
    def room_bytes(self) -> int:
        """Of one rank."""
        return max(0, self.allowed_bytes - self.taken_bytes) // self.ranks

    @property
    def shm_room_bytes(self) -> int | None:
        """Of one rank."""
        if self.shm_free_bytes is None:
            return None
        return max(0, int(SHARE * self.shm_free_bytes) - self.taken_shm_bytes) // self.ranks

    def less(self, rank_bytes: int, rank_shm_bytes: int = 0) -> "Host":
        """After each rank has taken so much."""
        taken = (
            self.taken_bytes + self.ranks * rank_bytes,
            self.taken_shm_bytes + self.ranks * rank_shm_bytes,
        )
        return replace(self, taken_bytes=taken[0], taken_shm_bytes=taken[1])

    def for_training(self) -> "Host":
        """What the training's loader may take where an evaluation has one as well."""
        shm = self.shm_free_bytes
        kept = (1 - TRAINING_SHARE) * SHARE
        return replace(
            self,
            taken_bytes=self.taken_bytes + math.ceil(kept * self.free_bytes),
            taken_shm_bytes=self.taken_shm_bytes + math.ceil(kept * shm) if shm is not None else 0,
        )


def smallest(hosts: Iterable[Host | None]) -> Host:
    """What holds on every machine of several: the least of each. One at least is no None."""
    first, *others = [host for host in hosts if host is not None]
    for other in others:
        shm = [free for free in (first.shm_free_bytes, other.shm_free_bytes) if free is not None]
        first = Host(
            min(first.free_bytes, other.free_bytes),
            min(first.cores, other.cores),
            min(shm, default=None),
            max(first.ranks, other.ranks),
            min(first.cards, other.cards),
        )
    return first


@dataclass(frozen=True)
class Need:
    """What one rank's loader makes."""

    sample_bytes: float  # of one sample in a batch
    batch: int  # samples
    kept: int = 1  # batches of a step, which are kept until it is done
    batches: int = 1  # of this rank in an epoch
    worker_bytes: int = WORKER_BYTES

    @property
    def batch_bytes(self) -> int:
        return math.ceil(self.sample_bytes * self.batch)

    def host_bytes(self, workers: int, prefetch: int, pinned: bool) -> int:
        """Workers, and every batch that may be ready or kept at a time; a pinned copy beside
        each.
        """
        held = (self.kept + workers * prefetch) * self.batch_bytes
        return workers * self.worker_bytes + held * (1 + _PINNED_TIMES * pinned)

    def shm_bytes(self, workers: int, prefetch: int) -> int:
        return (self.kept + workers * prefetch) * self.batch_bytes if workers else 0


@dataclass(frozen=True)
class Asked:
    """What the user gave; None: left to brimful."""

    workers: int | None = None
    prefetch: int | None = None
    pin_memory: bool | None = None


@dataclass(frozen=True)
class LoaderPlan:
    """Of one rank's loader. `workers` are the most there is room for, where nobody gave a number;
    `why` says what bounds them.

    `warnings` name what was given and does not fit: it is kept (`refuse` is for --strict).
    """

    workers: int
    prefetch: int
    pin_memory: bool
    why: str
    host_bytes: int = 0
    shm_bytes: int = 0
    rows: tuple[EffectiveSetting, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()


def plan_loader(host: Host, need: Need, asked: Asked = Asked()) -> LoaderPlan:
    """How a loader is set up. What was given stays as it is, and the rest follows from it."""
    chosen = _with_room(host, need, asked)
    in_force = (
        chosen.workers if asked.workers is None else asked.workers,
        chosen.prefetch if asked.prefetch is None else asked.prefetch,
        chosen.pin_memory if asked.pin_memory is None else asked.pin_memory and host.cards > 0,
    )
    plan = LoaderPlan(
        *in_force, chosen.why, need.host_bytes(*in_force), need.shm_bytes(*in_force[:2])
    )
    warnings = tuple(_warnings(host, need, plan, chosen, asked))
    return replace(plan, rows=tuple(_rows(host, plan, asked, bool(warnings))), warnings=warnings)


def refuse(warnings: Sequence[Diagnostic]) -> None:
    """--strict: what the host has no room for is not kept. Raises DoesNotFit."""
    if warnings:
        first = warnings[0]
        raise DoesNotFit(
            first.problem,
            first.explanation,
            f"{first.suggestion}; without --strict it is kept, with a warning",
        )


def _with_room(host: Host, need: Need, asked: Asked) -> LoaderPlan:
    """The first of these that has room for a worker: pinned and with two batches ahead, with one,
    and the same unpinned.
    """
    pins = (
        (True, False)
        if host.cards and asked.pin_memory is None
        else (bool(asked.pin_memory and host.cards),)
    )
    prefetches = (PREFETCH, 1) if asked.prefetch is None else (asked.prefetch,)
    for pinned in pins:
        for prefetch in prefetches:
            most, why = most_workers(host, need, prefetch, pinned, bounded=asked.workers is None)
            if most or asked.workers == 0:
                return LoaderPlan(most, prefetch, pinned, why)
    pinned = next(
        (
            pinned_copies
            for pinned_copies in pins
            if need.host_bytes(0, 1, pinned_copies) <= host.room_bytes
        ),
        pins[-1],
    )
    most, why = most_workers(host, need, prefetches[0], pinned, bounded=asked.workers is None)
    return LoaderPlan(most, prefetches[0], pinned, why)


def most_workers(
    host: Host, need: Need, prefetch: int, pinned: bool = False, bounded: bool = True
) -> tuple[int, str]:
    """(the most workers of one rank that there is room for, what holds them to that).

    `bounded`: by cores and the length of an epoch as well, which are no matter of room.
    """
    free, each = (
        host.room_bytes - need.host_bytes(0, 0, pinned),
        need.host_bytes(1, prefetch, pinned),
    )
    each -= need.host_bytes(0, 0, pinned)
    bounds = [(free // max(1, each), _memory_text(host))]
    if host.shm_room_bytes is not None and need.batch_bytes:
        words = (
            f"/dev/shm has {format_bytes(host.shm_free_bytes or 0)} free for batches of "
            f"{format_bytes(need.batch_bytes)}"
        )
        bounds.append(
            (
                (host.shm_room_bytes - need.kept * need.batch_bytes)
                // (prefetch * need.batch_bytes),
                words,
            )
        )
    if bounded:
        cores = counted(host.cores, "core") + (f" for {host.ranks} ranks" if host.ranks > 1 else "")
        bounds.append((host.cores // host.ranks, f"there are {cores}"))
        bounds.append(
            (
                need.batches if need.batches > 1 else 0,
                f"an epoch has {counted(need.batches, 'batch', 'batches')} on a rank",
            )
        )
    most, why = min(bounds, key=lambda bound: bound[0])
    return max(0, most), why


def _memory_text(host: Host) -> str:
    taken = (
        f", {format_bytes(host.taken_bytes)} of them are planned already"
        if host.taken_bytes
        else ""
    )
    return (
        f"{format_bytes(host.free_bytes)} of memory are free, loading may take {SHARE:.0%}{taken}"
    )


def _rows(host: Host, plan: LoaderPlan, asked: Asked, warned: bool) -> Iterable[EffectiveSetting]:
    why = plan.why
    kept = f"kept as asked, but it is too much: {why}" if warned else "as asked"
    yield _row("workers", asked.workers, plan.workers, why, kept)
    if plan.workers or asked.prefetch is not None:
        yield _row(
            "prefetch", asked.prefetch, plan.prefetch, "batches made ahead by each worker", kept
        )
    if host.cards:
        text = "copies to the card need not be waited for" if plan.pin_memory else why
        yield _row("pin_memory", asked.pin_memory, plan.pin_memory, text, kept)
    elif asked.pin_memory:
        yield _row("pin_memory", True, False, "there is no card to copy to", kept)


def _row(
    name: str, asked: int | bool | None, effective: int | bool, why: str, kept: str
) -> EffectiveSetting:
    return EffectiveSetting(
        name, asked, effective, why if asked != effective else kept, Source.MEASURED
    )


def _warnings(
    host: Host, need: Need, plan: LoaderPlan, proposed: LoaderPlan, asked: Asked
) -> Iterable[Diagnostic]:
    """What was given, is kept, and is more than there is room for."""
    shm = host.shm_room_bytes
    room = plan.host_bytes <= host.room_bytes and (shm is None or plan.shm_bytes <= shm)
    if room:
        return
    given = {
        "workers": asked.workers,
        "prefetch": asked.prefetch,
        "pin_memory": asked.pin_memory or None,
    }
    names = {name: value for name, value in given.items() if value}
    what = (
        ", ".join(f"{name} {value}" for name, value in names.items())
        or f"the batch of {counted(need.batch, 'sample')}"
    )
    sums = (
        f"{counted(plan.workers, 'worker')} and the batches of a rank take "
        f"{format_bytes(plan.host_bytes)}"
    )
    if shm is not None and plan.shm_bytes > shm:
        sums += (
            f", {format_bytes(plan.shm_bytes)} of it in /dev/shm, which has "
            f"{format_bytes(host.shm_free_bytes or 0)} free"
        )
    yield Diagnostic(
        "host-memory",
        f"{what} kept; host memory allows {counted(proposed.workers, 'worker')}",
        f"{sums}; {_memory_text(host)}" + (f", for {host.ranks} ranks" if host.ranks > 1 else ""),
        "leave it out for brimful to choose, or give the training more memory",
    )


# --- batches ---


def eval_batch(
    host: Host, sample_bytes: float, wanted: int, given: bool
) -> tuple[int, str | None, tuple[Diagnostic, ...]]:
    """(samples of an evaluation batch, why it is not `wanted`, warnings): one batch of each rank
    within what is left.
    """
    most = max(1, int(host.room_bytes // max(1.0, sample_bytes)))
    if wanted <= most:
        return wanted, None, ()
    why = f"a sample takes {format_bytes(math.ceil(sample_bytes))}, and {_memory_text(host)}"
    if not given:
        return most, why, ()
    advice = "leave it out for brimful to choose, or give the training more memory"
    problem = f"eval_batch {wanted:,} kept; host memory allows {most:,}"
    return wanted, None, (Diagnostic("host-memory", problem, why, advice),)


# --- data in memory ---


def holds_data(host: Host, data_bytes: int, pinned_bytes: int, share: float) -> bool:
    """Whether a copy for each rank of a machine is within `share` of what is free, and pinned
    within what loading may take.
    """
    return data_bytes * host.ranks <= share * host.free_bytes and pinned_bytes <= host.room_bytes


# --- how many workers keep up ---


@dataclass(frozen=True)
class Rates:
    """Seconds for a batch: made here, received from a worker, and between two with so many
    workers.
    """

    making_s: float
    receiving_s: float
    between_s: dict[int, float]  # by number of workers

    def scaled(self, factor: float) -> "Rates":
        between = {count: between_s * factor for count, between_s in self.between_s.items()}
        return Rates(self.making_s * factor, self.receiving_s * factor, between)


def brings_more(between_s: dict[int, float], count: int) -> bool:
    """Whether `count` workers were clearly faster than all fewer."""
    others = [seconds for tried, seconds in between_s.items() if tried != count]
    return not others or between_s[count] <= (1 - _GAIN) * min(others)


def choose_workers(rates: Rates) -> tuple[int, str]:
    """(workers, why)

    How long the device computes for a batch is not known yet. Without workers a step takes
    computing + making; with them the longer of computing and between, + receiving. So they win at
    most ``making - receiving`` (long computing) and lose at most ``between + receiving - making``
    (no computing); they are taken where they can win more than they can lose.
    """
    made = f"a batch takes {format_duration(rates.making_s)} to make"
    if not rates.between_s:
        return 0, made
    best = min(rates.between_s.values())
    chosen = min(
        count for count, between_s in rates.between_s.items() if between_s <= best * (1 + _GAIN)
    )
    wins = rates.making_s - rates.receiving_s
    loses = rates.between_s[chosen] + rates.receiving_s - rates.making_s
    tried = ", ".join(
        f"{format_duration(between_s)} with {n}" for n, between_s in sorted(rates.between_s.items())
    )
    reason = (
        f"{made}, {format_duration(rates.receiving_s)} to receive from a worker, and one comes "
        f"every {tried}"
    )
    if loses >= wins:
        return 0, f"{reason}: workers could cost more than they save"
    return chosen, f"{reason}: the fewest within {_GAIN:.0%} of the fastest"


def workers_needed(step_s: float, waited_s: float, workers: int) -> int | None:
    """Workers that keep up, by a step of `step_s` seconds, `waited_s` of them waiting for `workers`
    workers (0: none).

    One worker makes a batch in `p` seconds, the device works on it for `c`. Side by side `w`
    workers deliver one every ``p / w`` seconds; the training waits as long as that is more than
    `c`, and ``ceil(p / c)`` workers are enough. Workers that nobody waits for are taken to be as
    many as it needs. None where the data takes over 50 times as long as the computing.
    """
    waited_s = min(max(waited_s, 0.0), step_s)
    computing_s = step_s - waited_s
    if workers and waited_s == 0:
        return workers
    if computing_s <= _STARVED * step_s:
        return None
    making_s = workers * step_s if workers else waited_s
    return max(1, math.ceil(making_s / computing_s - 1e-9))


def workers_to_try(cores: int, most: int | None = None) -> tuple[int, ...]:
    """Counts of loader workers worth a trial against none: one, half the cores, all the cores but
    one; ascending.

    `most`: that the host has room for.
    """
    most = cores if most is None else min(most, cores)
    return tuple(sorted({min(count, most) for count in (1, cores // 2, cores - 1)} - {0}))
