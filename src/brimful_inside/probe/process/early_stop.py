"""When a trial stops early: how many steps it makes, and how long it goes on after them for the
script to come to its evaluation (`probe/course.py`)."""

from __future__ import annotations

import time
from typing import Optional, Tuple

from brimful_inside.probe.process.exit import others
from brimful_inside.wire import TrialConfig

# Steps that a GradScaler may skip beyond those wanted before the trial counts them as made.
MAX_SKIPPED = 50
# One batch each, so that scripts that use `loss` after their loop live.
MAX_EPOCHS, MAX_EPOCHS_S = 64, 30.0
# Then passes without a batch, for evaluations that come after all epochs.
MAX_EMPTY, MAX_EMPTY_S = 10_000, 10.0
MAX_STEPS, MAX_STEPS_S = 200, 10.0  # of a script without a DataLoader, while no evaluation is seen
# The same on an imaginary card, where a trace must be as long at every batch size, whatever the
# clock says.
MAX_EPOCHS_TRACED, MAX_STEPS_TRACED = 16, 20
# Backward passes of such steps: of those that accumulate many there are fewer.
MAX_PASSES_TRACED = 80
# Where backward passes limit a trial, so many steps are measured all the same; assumed.
LEAST_MEASURED = 2
# More steps before those that count, until the batches are used up that workers made ahead. With
# two batches a worker, as PyTorch has it, loading that takes a worker less than five seconds a
# batch is seen by then.
MAX_AHEAD_S = 10.0
# So long a trial goes on because reserved memory rises; assumed.
MAX_RISING_S = 300.0


class Limits:
    """Of a trial; a whole run (`cut` is false) has none."""

    def __init__(self, config: TrialConfig):
        self._ends = config.ends
        self._cuts = config.cut
        self._traced = config.device == "imaginary"
        self._target = config.ends.warmup_steps + config.ends.steps
        self.ends_with_steps = not config.ends.see_eval
        self._since: Optional[float] = None  # the steps were measured
        self._ahead = 0
        self._ahead_since = 0.0
        self._reserved_bytes = 0
        self._rising_since: Optional[float] = None
        self._extra_steps = 0
        self._passes = 0  # when the steps were measured
        self._epochs = 0
        self._empty = 0
        self._empty_since: Optional[float] = None
        self._began: Optional[float] = None  # when the first step was made

    @property
    def _elapsed_s(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    def restart(self, steps: int) -> None:
        """The first so many steps do not count."""
        self._target = steps + self._ends.warmup_steps + self._ends.steps
        self._extra_steps = 0

    def extend(self, more: int) -> None:
        """So many more steps come before those that count, as far as time allows."""
        self._ahead, self._ahead_since = more, time.monotonic()

    def holds(self, steps: int, reserved_bytes: int) -> None:
        """After each step: where memory rose, as many more come as it has to stay the same for. Of
        several ranks, which see different memory, each makes the steps of the trial.
        """
        now = time.monotonic()
        self._rising_since = self._rising_since or now
        late = now - self._rising_since > MAX_RISING_S or others() > 0
        if reserved_bytes > self._reserved_bytes and not late:
            self._reserved_bytes = reserved_bytes
            self._target = max(self._target, steps + (self._ends.settles_after or 0))

    def _steps_ahead(self) -> int:
        """Of several ranks none goes by its clock: one that made fewer steps than another would
        leave it waiting.
        """
        late = time.monotonic() - self._ahead_since > MAX_AHEAD_S and others() == 0
        return 0 if late else self._ahead

    def _trained_enough(self, steps: int, passes: int, samples: int) -> bool:
        """Whether the time, the samples or the backward passes are up that the trial trains for."""
        ends, now = self._ends, time.monotonic()
        self._began = self._began or now
        late = ends.after_s is not None and now - self._began >= ends.after_s
        accumulates = ends.after_passes is not None and passes >= ends.after_passes
        return (
            late
            or (accumulates and steps >= ends.warmup_steps + LEAST_MEASURED)
            or (ends.after_samples is not None and samples >= ends.after_samples)
        )

    def enough(self, steps: int, attempts: int, passes: int, samples: int) -> bool:
        """Whether all steps are made that are measured. As `Course.step`."""
        if not self._cuts:
            return False
        target = self._target + self._steps_ahead()
        enough = self._trained_enough(steps, passes, samples)
        if steps < target and attempts < target + MAX_SKIPPED and not enough:
            return False
        self._since, self._passes = time.monotonic(), passes
        return True

    def too_many(self, has_loader: bool, passes: int) -> bool:
        """Whether the script steps on for too long, one step more now, and comes to no
        evaluation."""
        self._extra_steps += 1
        if not self._traced and self._elapsed_s > (MAX_EPOCHS_S if has_loader else MAX_STEPS_S):
            return True
        if self._traced and not has_loader:
            many_passes = passes - self._passes >= MAX_PASSES_TRACED
            return many_passes or self._extra_steps >= MAX_STEPS_TRACED
        return self._extra_steps >= MAX_STEPS

    def ends_pass(self, given: int) -> Tuple[bool, bool]:
        """Whether a pass over a training loader ends here, after the measured steps, and whether
        the trial is over."""
        if given > 0:
            return True, False
        self._epochs += 1
        if self._traced and self._epochs <= MAX_EPOCHS_TRACED:
            return False, False
        if not self._traced and self._epochs <= MAX_EPOCHS and self._elapsed_s < MAX_EPOCHS_S:
            return False, False
        self._empty += 1
        self._empty_since = self._empty_since or time.monotonic()
        return True, self._empty > MAX_EMPTY or time.monotonic() - self._empty_since > MAX_EMPTY_S
