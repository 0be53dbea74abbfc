"""Epochs of uneven batches: what trials with the batches as the script draws them showed, and what
follows at other sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from brimful.ask.traces import Trials
from brimful.decide import loaders_seen
from brimful.decide.memory.uneven import are_uneven, drawn_steps, epochs_of
from brimful.measure.traces import read_traces
from brimful.values import Diagnostic, Outcome, TrialResult
from brimful_inside.simulator.program import Program, program_of

LARGEST_AT = 4  # steps before that of the largest batch, where others are as drawn
# An epoch of uneven batches tells of sizes up to so many times larger or smaller (assumed).
NEAR = 2


@dataclass
class Epochs:
    """Those of the sizes at which they were looked at."""

    trials: Trials
    # The fullest card's program over an epoch, in several orders; () where its trial failed.
    programs: dict[int | None, Sequence[Program]] = field(default_factory=dict)
    # The trials whose epochs hold the largest batch of many drawn at random; at other sizes the
    # largest samples make it.
    drawn: dict[int | None, TrialResult] = field(default_factory=dict)
    failed: dict[int | None, TrialResult] = field(default_factory=dict)
    even: set[int | None] = field(default_factory=set)  # a trial has shown that batches are alike

    @property
    def are_known(self) -> bool:
        """Whether any is."""
        return any(self.programs.values())

    def learned_at(self, size: int | None) -> int | None:
        """The size nearest to one at which an epoch was learned; itself where none was."""
        known = [at for at, programs in self.programs.items() if programs]
        if size in self.programs or size is None or not known:
            return size
        return min(known, key=lambda at: abs((at or 0) - size))

    def are_known_near(self, size: int) -> bool:
        """Whether one was learned near a size, or batches are alike: the fewer samples in a batch,
        the more batches differ."""
        nearest = self.learned_at(size) or size
        return nearest <= NEAR * size and size <= NEAR * nearest

    def learn(self, size: int | None, worst: Sequence[Program]) -> None:
        """A trial with the batches as the script draws them, for the epochs at a size. `worst`: the
        programs of all cards there with batches of the largest samples."""
        per_step = self._batches_per_step(size)
        steps, largest_at = drawn_steps(worst, per_step), ceil(LARGEST_AT * per_step)
        result = self._run_as_drawn(size, steps, largest_at=largest_at)
        known, self.programs[size] = self.are_known, ()
        if result.outcome is not Outcome.COMPLETED and known:
            self.failed[size] = result
            return  # that size is not named
        if result.outcome is not Outcome.COMPLETED:
            self.trials.session.note(
                Diagnostic(
                    "no-epoch",
                    "a trial with batches as the script draws them did not come to its end "
                    f"({result.outcome.value})",
                    "what batches of uneven sizes leave unused of the memory is not counted",
                    "",
                )
            )
            return
        drawn, fullest = self._programs_of(result)
        batch = result.reports[0].worst_batch
        if batch is not None and batch.drawn:
            self.drawn[size], worst = result, ()
        alike = worst[fullest] if fullest < len(worst) else None
        epochs = epochs_of(drawn[fullest], alike) if drawn else []
        if len(epochs) > 1 and not any(map(are_uneven, drawn)):
            self.even.add(size)  # what varies in the samples does not reach the card
        else:
            self.programs[size] = epochs

    def is_even(self, size: int | None) -> bool:
        """Whether batches are alike at a size or a larger one: tensors of small batches may be too
        small to tell."""
        return any((at or 0) >= (size or 0) for at in self.even)

    def _run_as_drawn(self, size: int | None, steps: int, **batches: int) -> TrialResult:
        trial = self.trials.trial_at(size, limitless=True)
        ends = replace(trial.ends, steps=steps - 1, see_eval=self.trials.shown_whole is None)
        trial = replace(trial, ends=ends, as_drawn=True, time_loader=None, **batches)
        return self.trials.session.run(
            trial, expected_total=len(self.trials.results) + len(self.programs) + 1
        )

    def _batches_per_step(self, size: int | None) -> float:
        """Of a fixed total a step has other numbers of them at other sizes."""
        result = self.trials.completed().get(size) or self.trials.representative()
        return loaders_seen.batches_per_step(result) or 1

    def _programs_of(self, result: TrialResult) -> tuple[list[Program], int]:
        """Those of all cards, and which is the fullest."""
        programs = [
            program_of(card.trace) for card in read_traces(result, self.trials.session.folder)
        ]
        held = [program.peak_live_bytes(program.sizes) for program in programs]
        return programs, held.index(max(held)) if held else 0
