"""Why a trial ended: the causes told apart (only the two out-of-memory causes may make a search go smaller)."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from brimful.measure.engine_words import follows
from brimful.values import Failure, Outcome, Report
from brimful_inside.simulator.oom_patterns import match_oom


@dataclass(frozen=True)
class Ending:
    """What the parent saw of a trial's end, beside what its processes told."""

    exit_code: int | None  # of the command; negative is a signal; None if we ended it
    timed_out: bool
    over_host_limit: bool
    interrupted: bool
    oom_kills: int  # by how much the kernel's counter moved
    rank_hellos: int
    hellos: int
    stderr_tail: str
    door_trouble: str | None = None  # the last line of why brimful could not enter one of its processes


def outcome_of(
    ending: Ending, reports: Sequence[Report], failures: Sequence[Failure]
) -> tuple[Outcome, Failure | None, str | None]:
    """The outcome, the failure that explains it, and a sentence for the user where there is more to say."""
    if ending.interrupted:
        return Outcome.INTERRUPTED, None, None
    if ending.over_host_limit:
        return Outcome.OUT_OF_HOST_MEMORY, None, "ended by brimful when its processes held more host memory than the budget"
    swallowed = _swallowed(reports, failures)
    if swallowed is not None:
        return Outcome.OUT_OF_DEVICE_MEMORY, swallowed, "the script caught the error and went on with less"
    fatal = _explains(failures)
    if fatal is not None and fatal.kind in _BY_KIND:
        return _BY_KIND[fatal.kind], fatal, None
    if _all_measured(reports):  # what happens afterwards (brimful ends loaders early) takes nothing from what was seen
        return Outcome.COMPLETED, fatal, _after_measured(fatal)
    if ending.timed_out:
        return Outcome.TIMED_OUT, fatal, None
    if fatal is not None:
        return Outcome.CRASHED, fatal, None
    return _from_outside(ending, reports)


MESSAGE_CHARACTERS = 200  # of an exception's first line: some hold whole tensors

_BY_KIND = {
    "out_of_device_memory": Outcome.OUT_OF_DEVICE_MEMORY,
    "out_of_host_memory": Outcome.OUT_OF_HOST_MEMORY,
    "unsupported": Outcome.UNSUPPORTED,
}


def _swallowed(reports: Sequence[Report], failures: Sequence[Failure]) -> Failure | None:
    """Out of memory in training that the script caught: it went on, and yet the size that was asked for does not fit.

    On an imaginary card alone: on a real one libraries try algorithms and swallow such errors in the ordinary way of things.
    """
    if not any(report.device == "imaginary" for report in reports):
        return None
    caught = (f for f in failures if f.caught and f.kind == "out_of_device_memory" and f.phase == "train")
    return next(caught, None)


def _explains(failures: Sequence[Failure]) -> Failure | None:
    """The failure that ended the run: the first of those nobody caught, out of memory before all others.

    When one rank runs out of memory the others see a broken connection; the cause is the rank that ran out.
    """
    uncaught = [f for f in failures if not f.caught]
    memory = [f for f in uncaught if f.kind in ("out_of_device_memory", "out_of_host_memory")]
    return min(memory or uncaught, key=follows, default=None)  # of equals the first


def _all_measured(reports: Sequence[Report]) -> bool:
    return bool(reports) and all(r.ended == "steps_done" for r in reports)


def _after_measured(failure: Failure | None) -> str | None:
    if failure is None:
        return None
    where = f" ({failure.where})" if failure.where else ""
    words = ": ".join(filter(None, [failure.type, failure.message.strip().partition("\n")[0][:MESSAGE_CHARACTERS]]))
    return f"after the measured steps the script stopped with {words}{where}; that brimful had ended its loaders can be why"


def _from_outside(ending: Ending, reports: Sequence[Report]) -> tuple[Outcome, Failure | None, str | None]:
    """No failure was told by the processes themselves: what exit code, counters and the error stream say."""
    code = ending.exit_code
    if ending.oom_kills > 0 and code not in (0, None):
        return Outcome.OUT_OF_HOST_MEMORY, None, "killed by the kernel for host memory (its oom-kill counter moved)"
    face = match_oom("", ending.stderr_tail) if code != 0 else None
    if face is not None:
        return _BY_KIND[face.kind], None, "recognised from what the script printed to standard error"
    if (code is not None and code < 0) or code in (128 + signal.SIGKILL,):
        number = -code if code is not None and code < 0 else signal.SIGKILL
        probably = "killed, probably for memory" if number == signal.SIGKILL else f"ended by signal {number}"
        return Outcome.KILLED, None, probably
    if ending.door_trouble and not reports and (code in (0, None) or ending.rank_hellos == 0):
        return Outcome.PROBE_NOT_LOADED, None, f"brimful could not enter the process: {ending.door_trouble}"
    if ending.rank_hellos == 0 and not reports:
        return (Outcome.PROBE_NOT_LOADED if code == 0 or ending.hellos == 0 else Outcome.CRASHED), None, None
    if code == 0:
        return (Outcome.COMPLETED if any(r.steps for r in reports) else Outcome.NO_STEP), None, None
    return Outcome.CRASHED, None, None
