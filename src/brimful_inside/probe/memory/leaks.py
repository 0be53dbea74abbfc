"""Memory of an imaginary card that is kept from step to step, or from one batch of an evaluation to
the next. Read after each step, and before a loader gives a batch. The last batch's variables are
still alive there, so a difference counts only where the later batch is nowhere larger than the
earlier."""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple, Optional

from brimful_inside.probe.passes import EVAL, Pass

# of one pass over a loader; an evaluation before the first step does not end early
KEPT_READINGS = 64
LEAST = 2  # differences that must all be growth, and steady: two points are no trend
STEADY = 4  # the largest difference is at most so many times the smallest
EXTRA = 2  # batches that an evaluation gets where its first ones left memory behind each

Shapes = Optional[List[List[int]]]  # of a batch's tensors; None: not known


class Reading(NamedTuple):
    """Bytes alive on the card once a batch was worked on, and the shapes of that batch."""

    alive_bytes: int
    shapes: Shapes


def bytes_kept(readings: List[Reading], least: int = LEAST) -> int:
    """Bytes that each further batch leaves: the smallest difference of those that count; 0 where
    one is no growth, where fewer than `least` count, or where they differ much. Where no shapes are
    known (an agent without a loader) it is the slope: of differences that are all the same, or of
    one more than `least`."""
    pairs = list(zip(readings, readings[1:]))
    differences = [later.alive_bytes - earlier.alive_bytes for earlier, later in pairs]
    if not differences or min(differences) <= 0:
        return 0
    if all(reading.shapes is None for reading in readings):
        enough = least if len(set(differences)) == 1 else least + 1
        slope = sum(differences) // len(differences)
        return slope if len(differences) >= enough and _are_steady(differences) else 0
    counted = [
        change
        for change, (earlier, later) in zip(differences, pairs)
        if _no_larger(later.shapes, earlier.shapes)
    ]
    return min(counted) if len(counted) >= least and _are_steady(counted) else 0


def _are_steady(differences: List[int]) -> bool:
    return max(differences) <= STEADY * min(differences)


def _no_larger(shapes: Shapes, than: Shapes) -> bool:
    """Whether each dimension of each tensor is at most what it was."""
    if not shapes or not than or len(shapes) != len(than):
        return False
    return all(len(a) == len(b) and all(n <= m for n, m in zip(a, b)) for a, b in zip(shapes, than))


class Leaks:
    """Takes the readings of one process. `alive(settle)` gives bytes, or None without an imaginary
    card; with `settle` it collects garbage first."""

    def __init__(self, alive: Callable[[bool], Optional[int]], most_steps: int):
        self._alive = alive
        self._most_steps = most_steps  # later steps are extra ones, each of an epoch of its own
        self._steps: List[Reading] = []
        self._passes: Dict[int, List[Reading]] = {}  # by the serial number of a pass
        self._evaluation: Dict[str, int] = {}

    def restart(self) -> None:
        del self._steps[:]

    def step(self, latest: Optional[Pass]) -> None:
        """A step after the warm-up (or its last) is complete. `latest`: the pass that gave the
        latest batch.
        """
        if len(self._steps) <= self._most_steps:
            alive = self._alive(False)  # a step has collected garbage already
            if alive is not None:
                self._steps.append(Reading(alive, _shapes(latest)))

    def batch(self, pass_: Pass, ends: bool) -> bool:
        """The script wants one more batch, which the pass does not give if it `ends`: then alone is
        garbage collected, as earlier readings with garbage in them show less growth. True: it
        should not end yet, for its batches so far left memory behind, and they are too few to
        tell."""
        if pass_.role not in (EVAL, None):
            self._passes.pop(pass_.serial, None)
            return False
        if pass_.given >= KEPT_READINGS:
            if self._evaluation.get("serial") == pass_.serial:
                self._evaluation["eval_seen"] = pass_.given
            return False
        alive = self._alive(ends)
        if alive is None:
            return False
        readings = self._passes.setdefault(pass_.serial, [])
        if len(readings) != pass_.given:
            return False  # it was trained on for a while
        readings.append(Reading(alive, _shapes(pass_)))
        later = readings[
            1:
        ]  # after the first batch, whose own variables are in the difference before
        if ends and 1 < len(later) < LEAST + EXTRA and bytes_kept(later, 1):
            return True
        if pass_.role == EVAL and len(later) > 1:
            self._keep_worst(pass_, bytes_kept(later))
        if ends:
            del self._passes[pass_.serial]  # shortened passes are many where a script continues
        return False

    def _keep_worst(self, pass_: Pass, kept_bytes: int) -> None:
        """Of all evaluations the one that would have left most on the card by its end."""
        growth = {"eval": kept_bytes, "eval_seen": pass_.given, "serial": pass_.serial}
        length = pass_.loader.facts.get("length")
        if length is not None:
            growth["eval_length"] = length
        if self._evaluation.get("serial") == pass_.serial or _total(growth) > _total(
            self._evaluation
        ):
            self._evaluation = growth

    def read(self) -> Dict[str, int]:
        """As in `Report.growth`."""
        training = bytes_kept(self._steps)
        growth = {"train": training} if training else {}
        if self._evaluation.get("eval"):
            growth.update(
                {name: value for name, value in self._evaluation.items() if name != "serial"}
            )
        return growth


def _total(growth: Dict[str, int]) -> int:
    return growth.get("eval", 0) * max(1, growth.get("eval_length", 1) - growth.get("eval_seen", 0))


def _shapes(pass_: Optional[Pass]) -> Shapes:
    """Of the latest batch of this pass, as far as the loader's batches are kept."""
    if pass_ is None or not pass_.given:
        return None
    number = pass_.loader.batches_seen - 1
    return pass_.loader.first[number].shapes if number < len(pass_.loader.first) else None
