"""When Python collects cycles: at steps and phases, so that the trace is the same at each run.

What was there when the card was first used (packages, the model, the data) is frozen until the
script itself collects: a full collection takes 0.1 s in a script that imports transformers, and
Python would do seven in a trial."""

from __future__ import annotations

import gc
import threading

from brimful_inside.imaginary.state.patches import Patches


class Garbage:
    """Python's collector, from the first use of the card on. A script that turns it on again has it
    run as ever."""

    def __init__(self) -> None:
        self._was_on = gc.isenabled()
        self._rests = self._left = False
        self._collect = gc.collect
        # a thread may use the card while another one leaves it; what is freed may collect
        self._lock = threading.RLock()

    def patch(self, patches: Patches) -> None:
        """What is there before the script starts is set aside; the script's own gc.collect()
        collects everything."""
        gc.freeze()

        @patches.function(gc)
        def collect(generation: int = 2) -> int:
            if self._rests and generation == 2:
                return self._everything()
            return self._collect(generation)

    def rest(self) -> None:
        """The card is used: from now on steps and phases decide when there is a collection."""
        with self._lock:
            if not self._left:
                self._rests = True
                gc.freeze()  # garbage too: nothing of the card's is in it
                gc.disable()

    def poll(self) -> None:
        """Frees cycles among what came since the card was used, or since the script's own last
        collection."""
        if self._rests and not gc.isenabled():
            self._collect()

    def leave(self) -> None:
        with self._lock:
            gc.unfreeze()
            if self._rests and self._was_on:
                gc.enable()
            self._rests, self._left = False, True

    def _everything(self) -> int:
        with self._lock:
            if self._left:
                return self._collect()
            gc.unfreeze()
            count = self._collect()
            gc.freeze()
            return count
