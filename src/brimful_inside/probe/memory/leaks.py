"""Memory of an imaginary card that is kept from step to step, or from one batch of an evaluation to the next.

A trial is cut after a few of them, so what a whole run would pile up (outputs kept with their graph, `preds.append(model(x))`)
is in no peak. What is alive is read where nothing of the work is under way: after each step, and each time a loader is asked
for a batch. There the variables of the last batch are still alive, so a reading may be higher than the one before because the
batch was larger. Hence a difference counts only where the later batch is nowhere larger than the earlier.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional

from brimful_inside.probe.hooks.loader_passes import EVAL, Iteration

KEPT_READINGS = 64  # of one pass over a loader; an evaluation before the first step is not cut
LEAST_OF_TRAINING = 2  # differences that must all be growth
LEAST_OF_EVALUATION = 1  # after the first batch, whose own variables come to be in the difference before

Shapes = Optional[List[List[int]]]  # of a batch's tensors; None: not known


class Reading(NamedTuple):
    """Bytes alive on the card once a batch was worked on, and what that batch was like."""

    alive_bytes: int
    shapes: Shapes


def kept(readings: List[Reading], least: int) -> int:
    """Bytes that each further batch leaves: the smallest difference of those that count; 0 where one is no growth, or where
    fewer than `least` count. Where shapes are not known, differences count if all of them are the same."""
    pairs = list(zip(readings, readings[1:]))
    differences = [later.alive_bytes - earlier.alive_bytes for earlier, later in pairs]
    if not differences or min(differences) <= 0:
        return 0
    counted = [change for change, (one, other) in zip(differences, pairs) if _no_larger(other.shapes, one.shapes)]
    if len(set(differences)) == 1 and all(reading.shapes is None for reading in readings):
        counted = differences
    return min(counted) if len(counted) >= least else 0


def _no_larger(shapes: Shapes, than: Shapes) -> bool:
    """Whether each dimension of each tensor is at most what it was."""
    if not shapes or not than or len(shapes) != len(than):
        return False
    return all(len(a) == len(b) and all(n <= m for n, m in zip(a, b)) for a, b in zip(shapes, than))


class Growth:
    """Takes the readings of one process. `alive(settle)` gives bytes, or None where this is not told (no imaginary card);
    with `settle` what only the garbage collector can free is gone first."""

    def __init__(self, alive: Callable[[bool], Optional[int]], most_steps: int):
        self._alive = alive
        self._most_steps = most_steps  # later steps are lent ones, each of an epoch of its own
        self._steps: List[Reading] = []
        self._passes: Dict[int, List[Reading]] = {}  # by the serial number of a pass
        self._evaluation: Dict[str, int] = {}

    def begin_anew(self) -> None:
        """The steps so far were a warm-up."""
        del self._steps[:]

    def step(self, latest: Optional[Iteration]) -> None:
        """A step after the warm-up (or its last) is complete. `latest`: the pass that gave the latest batch."""
        if len(self._steps) <= self._most_steps:
            alive = self._alive(False)  # a step has collected garbage already
            if alive is not None:
                self._steps.append(Reading(alive, _shapes(latest)))

    def batch(self, iteration: Iteration, ends: bool) -> None:
        """`iteration` is asked for one more batch, which it does not give if it `ends`.

        Garbage is collected at the end alone: readings before it hold as much or more than is kept, which tells less growth.
        """
        if iteration.role not in (EVAL, None):
            self._passes.pop(iteration.serial, None)
            return
        if iteration.given >= KEPT_READINGS:
            if self._evaluation.get("serial") == iteration.serial:
                self._evaluation["eval_seen"] = iteration.given
            return
        alive = self._alive(ends)
        if alive is None:
            return
        readings = self._passes.setdefault(iteration.serial, [])
        if len(readings) != iteration.given:
            return  # it was trained on for a while
        readings.append(Reading(alive, _shapes(iteration)))
        if iteration.role == EVAL and iteration.given > 1:
            self._tell(iteration, readings)
        if ends:
            del self._passes[iteration.serial]  # cut passes are many where a script goes on

    def _tell(self, iteration: Iteration, readings: List[Reading]) -> None:
        """Keeps the evaluation that would have left most on the card by its end."""
        told = {"eval": 0, "eval_seen": iteration.given}
        told["eval"] = kept(readings[1:], LEAST_OF_EVALUATION)
        length = iteration.watched.facts.get("length")
        if length is not None:
            told["eval_length"] = length
        same = self._evaluation.get("serial") == iteration.serial
        if same or _in_all(told) > _in_all(self._evaluation):
            self._evaluation = {**told, "serial": iteration.serial}

    def read(self) -> Dict[str, int]:
        """ "train": bytes kept per step; "eval": per batch of an evaluation that gave "eval_seen" batches of "eval_length"
        (absent where not known). What does not grow is absent."""
        found = {}
        training = kept(self._steps, LEAST_OF_TRAINING)
        if training:
            found["train"] = training
        if self._evaluation.get("eval"):
            found.update({name: value for name, value in self._evaluation.items() if name != "serial"})
        return found


def _in_all(told: Dict[str, int]) -> int:
    return told.get("eval", 0) * max(1, told.get("eval_length", 1) - told.get("eval_seen", 0))


def _shapes(iteration: Optional[Iteration]) -> Shapes:
    """Of the latest batch of this pass, as far as the loader's batches are noted."""
    if iteration is None or not iteration.given:
        return None
    watched: Any = iteration.watched
    number = watched.batches_seen - 1
    return watched.first[number].shapes if 0 <= number < len(watched.first) else None
