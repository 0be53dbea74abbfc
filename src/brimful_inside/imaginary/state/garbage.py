"""When Python collects cycles: at steps and phases, so that the trace is the same at each run. The
script's own run collects later, or never: what each step leaves in cycles is noted for that.

What was there when the card was first used (packages, the model, the data) is frozen until the
script itself collects: a full collection takes 0.1 s in a script that imports transformers, and
Python would do seven in a trial."""

from __future__ import annotations

import gc
import threading
from typing import Any, Dict, List, NamedTuple

import torch

from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.simulator.garbage import threshold

LEAST_STEPS = 2  # after the first one, which makes the optimizer's state


class InCycles(NamedTuple):
    """What a step left in reference cycles."""

    nbytes: int  # of the fullest card
    containers: int
    largest: int  # the largest allocation's number in the trace


class Garbage:
    """Python's collector, from the first use of the card on. The script may turn it on and off:
    that is noted, and told where it asks."""

    def __init__(self) -> None:
        self._is_on = gc.isenabled()  # as the script has it
        self._rests = self._left = False
        self._collect, self._enable, self._disable = gc.collect, gc.enable, gc.disable
        # a thread may use the card while another one leaves it; what is freed may collect
        self._lock = threading.RLock()
        self._steps: List[InCycles] = []
        self._script_collects = False  # it did, since the step before
        # steps since it did; before that, since the time before; the most of the latter
        self._steps_since = self._interval = self._steps_between = 0

    def patch(self, patches: Patches) -> None:
        """What is there before the script starts is set aside; the script's own gc.collect()
        collects everything."""
        gc.freeze()

        @patches.function(gc)
        def collect(generation: int = 2) -> int:
            self._script_collects = True
            if self._rests and generation == 2:
                return self._everything()
            return self._collect(generation)

        patches.set_all(
            gc,
            enable=lambda: self._turn(True),
            disable=lambda: self._turn(False),
            isenabled=lambda: self._is_on,
        )

    def _turn(self, is_on: bool) -> None:
        self._is_on = is_on
        if not self._rests:
            (self._enable if is_on else self._disable)()

    def rest(self) -> None:
        """The card is used: from now on steps and phases decide when there is a collection."""
        with self._lock:
            if not self._left:
                self._rests = True
                gc.freeze()  # garbage too: nothing of the card's is in it
                self._disable()

    def poll(self) -> None:
        """Frees cycles among what came since the card was used, or since the script's own last
        collection."""
        if self._rests:
            self._collect()

    def step(self, cards: Any, counts: bool) -> None:
        """As `poll`, after a step. `counts`: it shows what a step leaves in cycles."""
        if self._script_collects:
            self._interval, self._steps_since = self._steps_since, 0
            self._script_collects = False
        self._steps_since += 1
        # a single step, after the measured ones, may come after an evaluation
        if counts or self._steps_since > 1:
            self._steps_between = max(self._steps_between, self._interval)
        if not (self._rests and counts):
            return self.poll()
        entries, before = dict(cards.storages), _kept_bytes(cards)
        containers = self._collect_and_count()
        nbytes = max(was - now for was, now in zip(before, _kept_bytes(cards)))
        freed = [entry for key, entry in entries.items() if cards.storages.get(key) is not entry]
        largest = max(freed, key=lambda entry: entry.nbytes, default=None)
        self._steps.append(InCycles(nbytes, containers, largest.id if largest else 0))

    def _collect_and_count(self) -> int:
        """Frees cycles; how many containers hung together with tensors. What runs in place of the
        card leaves cycles as well."""
        flags, before = gc.get_debug(), len(gc.garbage)
        gc.set_debug(gc.DEBUG_SAVEALL)
        self._collect()
        gc.set_debug(flags)
        containers = _near_tensors(gc.garbage[before:])
        del gc.garbage[before:]
        self._collect()
        return containers

    def read(self, gradients: int) -> Dict[str, int]:
        """As in `Report.growth`. The objects of so many gradients live from one step to the next:
        Python counts them as well, and all else that it counts is left out, so that no collection
        is predicted too early (12 layers of a transformer, a CPU: 174 where there are 146
        gradients; measured, torch 2.13, Python 3.11, 2026-11-29)."""
        steps = self._steps[1:]
        nbytes = min((step.nbytes for step in steps), default=0)
        if len(steps) < LEAST_STEPS or nbytes <= 0:
            return {}
        growth = {"cycles": nbytes, "cycles_made": steps[-1].largest}
        alive = [self._steps_between] if self._steps_between else []
        if self._is_on and threshold():
            containers = max(1, min(step.containers for step in steps))
            alive.append(max(1, -(-(threshold() - gradients) // containers)))
        if alive:
            growth["cycles_alive"] = min(alive)
        return growth

    def leave(self) -> None:
        with self._lock:
            gc.unfreeze()
            if self._rests and self._is_on:
                self._enable()
            self._rests, self._left = False, True

    def _everything(self) -> int:
        with self._lock:
            if self._left:
                return self._collect()
            gc.unfreeze()
            count = self._collect()
            gc.freeze()
            return count


def _near_tensors(objects: List[Any]) -> int:
    """How many of these refer to tensors among them, or are referred to by them, by way of others
    among them too."""
    inside = {id(each): each for each in objects}
    joined: Dict[int, List[int]] = {key: [] for key in inside}
    for key, each in inside.items():
        for other in map(id, gc.get_referents(each)):
            if other in inside:
                joined[key].append(other)
                joined[other].append(key)
    reached = set()
    # `isinstance` would ask a proxy for what it stands for, which may be gone
    waiting = [key for key, each in inside.items() if issubclass(type(each), torch.Tensor)]
    while waiting:
        key = waiting.pop()
        if key not in reached:
            reached.add(key)
            waiting += joined[key]
    return len(reached)


def _kept_bytes(cards: Any) -> List[int]:
    return [ledger.allocator.kept_bytes() for ledger in cards.ledgers]
