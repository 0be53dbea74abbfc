"""Why an attempt of a run ended. Unlike a trial it runs to its own end, so its exit code is the first word.

Where several ranks fall, the one that ran out of memory is the cause, and "connection closed by peer" is a consequence.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from brimful.measure.engine_words import follows, is_for_memory
from brimful.values import Failure, Outcome
from brimful_inside.simulator.oom_patterns import match_oom

_BY_KIND = {
    "out_of_device_memory": Outcome.OUT_OF_DEVICE_MEMORY,
    "out_of_host_memory": Outcome.OUT_OF_HOST_MEMORY,
}
_RANK_KILLED = re.compile(r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)")  # torchrun's words for a rank that was


@dataclass(frozen=True)
class Ending:
    """What was seen from outside."""

    exit_code: int | None  # of the command; negative is a signal; None if brimful killed it
    by_signal: Outcome | None  # brimful passed a signal on: `interrupted` or `terminated`
    over_host_limit: bool
    oom_kills: int  # by how much the kernel's counter moved
    stderr_tail: str
    last_step: int  # the furthest that any rank told of
    on_host: bool = True  # no rank trained on an accelerator


@dataclass(frozen=True)
class Told:
    """A failure and the rank that told it."""

    rank: int
    failure: Failure


@dataclass(frozen=True)
class Why:
    outcome: Outcome
    told: Told | None = None
    sentence: str | None = None


def outcome_of(ending: Ending, told: Sequence[Told]) -> Why:
    """The outcome, the failure that explains it, and a sentence where there is more to say."""
    if ending.over_host_limit:
        return Why(Outcome.OUT_OF_HOST_MEMORY, None, "ended by brimful: its processes held more host memory than --host-limit")
    if ending.by_signal is not None:
        return Why(ending.by_signal)
    if ending.exit_code == 0:
        return Why(Outcome.COMPLETED)
    fatal = _fatal(told, ending.last_step)
    if fatal is not None:
        return Why(_kind(fatal.failure, ending.on_host), fatal)
    return _from_outside(ending, told)


def _kind(failure: Failure, on_host: bool) -> Outcome:
    missing = Outcome.OUT_OF_HOST_MEMORY if on_host else Outcome.OUT_OF_DEVICE_MEMORY
    return _BY_KIND.get(failure.kind, missing if is_for_memory(failure) else Outcome.CRASHED)


def _fatal(told: Sequence[Told], last_step: int) -> Told | None:
    """Memory before all else, then what no other rank's fall explains; then memory that a script caught and gave up over."""
    uncaught = [one for one in told if not one.failure.caught]
    memory = [one for one in uncaught if one.failure.kind in _BY_KIND or is_for_memory(one.failure)]
    if memory:
        return min(memory, key=lambda one: follows(one.failure))  # of equals the first
    own = [one for one in uncaught if not follows(one.failure)]
    gave_up = [one for one in told if one.failure.caught and one.failure.kind in _BY_KIND and one.failure.step >= last_step]
    return next(iter([*own, *gave_up]), None)


def _from_outside(ending: Ending, told: Sequence[Told]) -> Why:
    code = ending.exit_code
    if ending.oom_kills > 0:
        return Why(Outcome.OUT_OF_HOST_MEMORY, None, "killed by the kernel for host memory (its oom-kill counter moved)")
    face = match_oom("", ending.stderr_tail)
    if face is not None:
        return Why(_BY_KIND[face.kind], None, "recognised from what the script printed to standard error")
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return Why(Outcome.KILLED, None, "killed, probably for memory")
    if _RANK_KILLED.search(ending.stderr_tail):
        return Why(Outcome.KILLED, None, "one of its ranks was killed, probably for memory")
    if code is not None and code < 0:
        return Why(Outcome.KILLED, None, f"ended by signal {-code}")
    return Why(Outcome.CRASHED, next(iter(told), None))
