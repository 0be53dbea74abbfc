"""Who watches while a verb works: a terminal, a notebook, a test."""

import sys
from collections.abc import Mapping

from brimful.values import Attempt, EffectiveSetting, Heartbeat, Prediction, Trial, TrialResult
from brimful_inside import wire


class Watcher:
    """Watches in silence, and passes on what the command of a run writes."""

    terminals: Mapping[str, int] = {}  # descriptors of "stdout" and "stderr" that are terminals

    def message(self, text: str) -> None: ...
    def trial_started(self, trial: Trial, number: int, expected_total: int | None) -> None: ...
    def trial_progress(self, progress: wire.Progress | None) -> None: ...
    def trial_ended(self, result: TrialResult) -> None: ...
    def predicted_so_far(self, prediction: Prediction) -> None: ...
    def attempt_started(self, number: int, settings: tuple[EffectiveSetting, ...]) -> None: ...
    def heartbeat(self, beat: Heartbeat) -> None: ...
    def attempt_ended(self, attempt: Attempt) -> None: ...

    def output(self, stream: str, data: bytes) -> None:
        target = getattr(sys, stream)
        if hasattr(target, "buffer"):
            target.buffer.write(data)
        else:  # a notebook's
            target.write(data.decode(errors="replace"))
        target.flush()
