"""The setting that a question is about: the first value that trains, and the values that are its
multiples."""

from brimful.ask.traces import Trials, first_size
from brimful.decide.memory.search_traced import FIRST_SIZE
from brimful.errors import CommandFailed
from brimful.trials.results import fails_alike
from brimful.units import noun_of
from brimful.values import (
    Diagnostic,
    Outcome,
)

# Of any other setting: images of 5 pixels are smaller than kernels.
FIRST_VALUES = (FIRST_SIZE, 64, 256, 1024)
GROUP = 8  # what batch sizes are multiples of, where a script takes no others


def first_that_trains(trials: Trials, asked: int | None) -> tuple[int, int]:
    """(A small batch size that was traced, the size whose multiples to search.)

    Scripts that want pairs, or groups of four or eight, fail at the usual first size; then brimful
    tries a group of eight, and the size that was asked, and multiples alone where one trains.
    Raises the failure at the size that was asked, else the first, where that is not the reason: at
    once, where both sizes fail with the same error.
    """
    if not trials.in_batches:
        return _first_value(trials)
    most = trials.session.options.max_batch_size
    # Whatever was asked: the answer is then the same.
    start = first_size(None, most, trials.device.cards)
    try:
        result = trials.result(start)
    except CommandFailed:
        if not _may_train_elsewhere(trials, start):
            raise
        others = [GROUP] if start % GROUP and (most or GROUP) >= GROUP else []
        others += [asked] if asked not in (None, start, *others) else []
        for size in others:
            if _trains(trials, size):
                return size, _multiples(trials, size, start) if size > start else 1
            if fails_alike(trials.results[start], trials.results[size]):
                raise
        if asked in trials.results:
            trials.result(asked)
        raise
    over = max((report.split_over for report in result.reports), default=1)  # cards of a process
    return start, over if start % over == 0 else 1


def _first_value(trials: Trials) -> tuple[int, int]:
    """As `first_that_trains`, of any other setting: a script may want more than a few, or multiples
    of a power of two.
    """
    value = trials.command.given.get(trials.unknown)
    more = (value,) if isinstance(value, int) and value not in FIRST_VALUES else ()
    first = next((value for value in (*FIRST_VALUES, *more) if _trains(trials, value)), None)
    if first is None:
        trials.result(FIRST_SIZE)  # raises the first failure
    if first in (None, FIRST_SIZE) or _trains(trials, first + 1):
        return first or FIRST_SIZE, 1
    return first, _multiples(trials, first, first + 1)


def _multiples(trials: Trials, first: int, failed: int) -> int:
    """What sizes have to be multiples of, where `first` trains and the size `failed` does not; it
    is noted.
    """
    unit = first
    while unit > 2 and unit % 2 == 0 and _trains(trials, first + unit // 2):
        unit //= 2
    trials.session.note(
        Diagnostic(
            "multiples",
            f"the script trains at {noun_of(trials.unknown)} {first} and fails at {failed}",
            f"brimful tries only multiples of {unit}, and the largest that fits is one of them",
            "",
        )
    )
    return unit


def _trains(trials: Trials, size: int) -> bool:
    """Raises what no other size can mend."""
    try:
        trials.result(size)
    except CommandFailed:
        if not _may_train_elsewhere(trials, size):
            raise
        return False
    return True


def _may_train_elsewhere(trials: Trials, size: int) -> bool:
    """Not so where there is no such command, or where it takes too long."""
    return size in trials.results and trials.results[size].outcome is not Outcome.TIMED_OUT
