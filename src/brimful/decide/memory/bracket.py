"""How searches run, and the bracket of one for the largest batch size: what ran, what did not and
why, which limits hold, and whether the script's loader follows the sizes.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil, isqrt
from typing import TypeVar

from brimful.errors import STOPS
from brimful.units import noun_of
from brimful.values import Limits, Outcome

CLOSE = 0.03  # of a size: less is not worth another trial (assumed)
WIDE = 8  # times as large (assumed)
# Below a value whose trial takes too much of this computer, one this many times smaller is an
# answer (assumed): each further trial takes nearly as much.
NEAR_HOST = 4


_Asked = TypeVar("_Asked")
_Shown = TypeVar("_Shown")
_Found = TypeVar("_Found")


def run_search(
    search: Generator[_Asked, _Shown, _Found], show: Callable[[_Asked], _Shown]
) -> _Found:
    """Runs a search to its end: it yields what to try, is sent what `show` makes of that, and
    returns its conclusion. What tells `show` to stop is thrown into the search: it returns what it
    knows, or lets that pass where it knows nothing.
    """
    try:
        size = next(search)
        while True:
            try:
                result = show(size)
            except STOPS as stop:
                size = search.throw(stop)
            else:
                size = search.send(result)
    except StopIteration as end:
        return end.value


def least_step(size: int) -> int:
    """How far above a size another one is worth a trial."""
    return max(1, ceil(CLOSE * size))


def upper_limit(limits: Limits) -> tuple[int | None, str | None]:
    """The largest batch size that the limits allow, and which of them sets it: "dataset",
    "max_batch_size", "loader" or "budget".
    """
    named = [
        (limits.dataset_length, "dataset"),
        (limits.max_batch_size, "max_batch_size"),
        (limits.loader_cap, "loader"),
        (limits.over_an_epoch, "budget"),
    ]
    given = [(value, name) for value, name in named if value is not None]
    return min(given, key=lambda pair: pair[0]) if given else (None, None)


@dataclass(frozen=True)
class Given:
    """What a trial at some batch size showed."""

    batch: int  # samples of the largest batch that the training loader of a process gave
    per_step: float  # samples that went into a step, over all processes and batches
    by_input: bool = False  # there is no loader: `batch` is what the model's input has of samples


def loader_cap(given: Mapping[int, Given], length: int | None) -> int | None:
    """The batch beyond which the loader does not follow the size asked, where trials (by size) show
    one; else None.

    Two sizes with the same batch show it where fewer samples than asked go into a step at both
    (else it may be a size for all processes, or one that is accumulated), or where the batch lies
    between the two. So does one size, where the smaller ones were followed: what alone shows it
    without a loader, for an input may have as many rows whatever is asked (a graph). A batch of the
    whole data set (`length`) is no cap.
    """
    by_input = any(shown.by_input for shown in given.values())
    pairs = () if by_input else combinations(sorted(given.items()), 2)
    for (small, at_small), (large, at_large) in pairs:
        same, batch = at_small == at_large, at_large.batch
        if (
            same
            and _is_part(batch, length)
            and at_large.per_step < large
            and (at_small.per_step < small or small < batch < large)
        ):
            return batch
    if len(given) < 3:
        return None
    size = max(given)
    cap = given[size].batch
    followed = all(given[other].batch == min(other, cap) for other in given)
    shares = {shown.per_step / shown.batch for shown in given.values()}
    shows = followed and len(shares) == 1 and cap < size and _is_part(cap, length)
    return cap if shows else None


def _is_part(batch: int, length: int | None) -> bool:
    return length is None or batch < length


@dataclass
class Bracket:
    """The batch sizes that were tried. Raises ValueError where the limits leave none.

    All sizes count groups of `multiple_of` samples: a script may want pairs, or a process may split
    its batch over several cards. Uneven sizes would leave cards with rounded shares, whose
    allocations nothing extrapolates.
    """

    limits: Limits  # in samples
    multiple_of: int = 1
    unknown: str = "batch_size"  # what the sizes are of
    tried: list[int] = field(default_factory=list)  # in order
    fitting: set[int] = field(default_factory=set)
    too_large: set[int] = field(default_factory=set)  # ran out of memory, or peaked over the budget
    given: dict[int, Given] = field(
        default_factory=dict
    )  # by size in samples: what the training loader gave
    script_errors: dict[int, str] = field(
        default_factory=dict
    )  # where the script itself failed, and its words
    # those of them at which the trial took too much of this computer, not the script failed
    beyond_host: set[int] = field(default_factory=set)
    failed: Outcome | None = None  # a failure that no smaller size can mend

    def __post_init__(self) -> None:
        if self.upper is not None and self.upper < 1:
            raise ValueError("no batch size from 1 to {} ({})".format(*upper_limit(self.limits)))

    @property
    def is_wide(self) -> bool:
        """Whether what fits and what does not are so far apart that neither is an answer."""
        return self.low is not None and self.high is not None and self.high > WIDE * self.low

    @property
    def in_batches(self) -> bool:
        return self.unknown == "batch_size"

    @property
    def noun(self) -> str:
        return noun_of(self.unknown)

    @property
    def upper(self) -> int | None:
        """The largest size that the limits allow."""
        samples = upper_limit(self.limits)[0]
        return None if samples is None else min(samples, max(1, samples // self.multiple_of))

    @property
    def low(self) -> int | None:
        """The largest size that ran within the budget and obeys the limits, which trials may have
        made known.
        """
        upper = self.upper
        return max((size for size in self.fitting if upper is None or size <= upper), default=None)

    @property
    def high(self) -> int | None:
        """The smallest size above it that memory did not suffice for."""
        return min((size for size in self.too_large if size > (self.low or 0)), default=None)

    @property
    def largest_to_try(self) -> int | None:
        """The largest size below `high` that the limits allow; None where nothing bounds it."""
        high = self.high
        return min(
            (
                bound
                for bound in (self.upper, None if high is None else high - 1)
                if bound is not None
            ),
            default=None,
        )

    def learn_given(
        self, size: int, batch: int | None, per_step: float | None, by_input: bool = False
    ) -> None:
        """What the training loader gave at `size`, or the model's input had."""
        if batch and per_step:
            self.given[self.samples(size)] = Given(batch, per_step, by_input)
            self.limits = replace(
                self.limits, loader_cap=loader_cap(self.given, self.limits.dataset_length)
            )

    @property
    def ignored(self) -> bool:
        """Whether the loader followed none of the sizes that were tried: they are one size."""
        cap = self.limits.loader_cap
        return cap is not None and all(given.batch == cap for given in self.given.values())

    def within(self, size: int) -> int:
        """The size nearest to `size` that the limits allow."""
        return max(1, min(size, self.upper if self.upper is not None else size))

    def learn_dataset_length(self, samples: int | None) -> None:
        lengths = [length for length in (self.limits.dataset_length, samples) if length is not None]
        self.limits = replace(self.limits, dataset_length=min(lengths, default=None))

    def add_script_error(self, size: int, words: str | None, outcome: Outcome) -> None:
        self.script_errors[size] = (
            words
            or f"the script itself, which fails at {self.noun} {self.samples(size):,} ({outcome})"
        )

    def script_error_above(self, size: int | None) -> int | None:
        """The smallest size above `size` at which the script raised an error. Only trials show
        where that is.
        """
        return min((error for error in self.script_errors if error > (size or 0)), default=None)

    @property
    def largest_without_error(self) -> int | None:
        """The largest size to try below a script error: half way in octaves, and `low` itself once
        the two are close.
        """
        low, error = self.low, self.script_error_above(self.low)
        if error is None:
            return None
        if low is None:
            return error - 1
        if error - low <= least_step(low) or (
            error in self.beyond_host and error <= NEAR_HOST * low
        ):
            return low
        middle = isqrt(low * error)
        # Scripts limit lengths and the like to round numbers.
        round_one = roundest(max(low + 1, 3 * middle // 4), min(error, 3 * middle // 2))
        return max(low + 1, middle if self.in_batches else round_one)

    def untried_note(self) -> str | None:
        """What was not tried between the largest size that ran and the script's error; None where
        they are close.
        """
        low, error = self.low, self.script_error_above(self.low)
        is_close = self.in_batches and self.largest_without_error == low
        is_next = low is not None and error == low + 1
        if low is None or error is None or is_next or is_close or error in self.beyond_host:
            return None
        return (
            f"{self.samples(low):,} is the largest that ran and {self.samples(error):,} the "
            "smallest at which the script "
            "raised an error: no trials were left for sizes in between"
        )

    def samples(self, size: int) -> int:
        return size * self.multiple_of

    def made_at(self, size: int) -> int:
        """Samples of the batch that the script trains on where it is asked for this size: no more
        than the limits that trials made known.
        """
        asked, upper = self.samples(size), upper_limit(self.limits)[0]
        if upper is None:
            return asked
        return upper if self.ignored else min(asked, upper)


def roundest(first: int, end: int) -> int:
    """The number from `first` up to `end`, without it, that the largest power of two divides: where
    things are padded to.
    """
    power = 1
    while (end - 1) // (2 * power) * 2 * power >= first:
        power *= 2
    return (end - 1) // power * power
