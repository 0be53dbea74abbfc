"""What the verbs share on an imaginary card: the trials as a card reads them, and the search
for the largest batch size.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

from brimful.command import fill
from brimful.decide.loaders_seen import (
    dataset_length,
    input_size,
    largest_batch,
    main_loader,
    whole_steps,
)
from brimful.decide.memory.bracket import run_search, upper_limit
from brimful.decide.memory.fit import Card, Replayer, context_of, slack_of
from brimful.decide.memory.intervals import ALLOCATOR, of_several_ranks
from brimful.decide.memory.known_traces import MOST_TRACES, Traced
from brimful.decide.memory.search_traced import (
    FIRST_SIZE,
    Goal,
    MemoryConclusion,
    search_largest,
)
from brimful.decide.memory.size_model import SizeModel
from brimful.decide.memory.uneven import (
    MEMORY,
    MOST_RISE,
    ORDERS,
    SCRIPT,
    largest_over_an_epoch,
    largest_scaled,
    scaled,
    vary_by_batch,
)
from brimful.errors import DoesNotFit
from brimful.units import format_bytes, format_interval, noun_of
from brimful.values import Budget, Device, Diagnostic, Gpu, Outcome, Setting, TrialResult
from brimful.verbs.long_evaluation import training_of
from brimful.verbs.results import script_error
from brimful.verbs.session import Session
from brimful.verbs.start import Start
from brimful.verbs.trials import Trials, capacity_bytes, first_that_trains
from brimful_inside.simulator.allocator_settings import settings_in
from brimful_inside.simulator.program import NOTHING, Program, joined, program_of
from brimful_inside.simulator.replay import Replayed, worst_of

# An epoch of uneven batches tells of sizes up to so many times larger or smaller (assumed).
NEAR = 2


class Replayers(NamedTuple):
    """Replays at a size, the worst of all cards; three times the same where batches are alike."""

    largest_batches: Replayer  # every batch is made of the largest samples
    as_drawn: Replayer  # an epoch of uneven batches as well, in the script's order
    all_orders: Replayer  # and in others
    are_uneven: bool


@dataclass
class CardView:
    """Trials as one card reads them: the one that they ran on, or another that does all in the same
    way.
    """

    trials: Trials
    device: Device
    budget: Budget
    # Sizes that were traced for another card: its own search begins with them.
    begins_with: tuple[int, ...] = ()
    conclusion: MemoryConclusion | None = None  # of its search, once that came to its end
    # Whether the traces of another card are enough for its answer, where a model gives that.
    is_read: bool = False
    # (Whether the batch size can be set, the size in question), once that is known.
    question: tuple[bool, int | None] | None = None

    def on(self, device: Device, budget: Budget) -> "CardView":
        """The same traces, read for another card that does all in the same way."""
        sizes = tuple(sorted(size for size in self.trials.results if size is not None))
        other = replace(self, device=device, budget=budget, begins_with=sizes, conclusion=None)
        return replace(other, is_read=True)

    # --- the programs and their replays

    def here(self, program: Program) -> Program:
        """The program of a trace with the sizes of this kind of card."""
        gpu = self.device.gpu
        if self.device is self.trials.device or gpu is None:
            return program
        return program.on_card(gpu.capability, gpu.multiprocessors)

    def programs(self, size: int | None) -> tuple[Program, ...]:
        """The programs of all cards of all ranks, with the sizes of this kind of card."""
        return tuple(map(self.here, self.trials.read(size).programs))

    def joined(self, size: int) -> Program | None:
        """The program of all cards at a size that was traced; None without a trace."""
        programs = self.programs(size)
        return joined(programs) if programs else None

    def replayer(self, size: int | None) -> Replayer | None:
        """The replay of the traces at a size, the worst of them; over epochs in all orders where
        batches are uneven. None without a trace."""
        replayers = self.traced_replayers(size)
        return replayers.all_orders if replayers else None

    def traced_replayers(self, size: int | None) -> Replayers | None:
        """Those of the traces at a size; None without a trace."""
        programs = self.programs(size)
        return self.replayers(size, programs) if programs else None

    def replayers(self, size: int | None, programs: Sequence[Program]) -> Replayers:
        """Those of the programs of all cards at a size."""
        epochs, beside = self.epochs(size, None), self.beside_epochs(size, programs)
        drawn, all_orders = (partial(self._worst, beside, epochs[:end]) for end in (1, len(epochs)))
        return Replayers(partial(self._worst, programs, []), drawn, all_orders, bool(epochs))

    def _worst(
        self, programs: Sequence[Program], epochs: Sequence[Program], room: int | None
    ) -> Replayed:
        """Epochs are long, and their orders are assumptions enough."""
        replays = [self.card.replay(program, room) for program in programs]
        return worst_of([*replays, *(self.card.replay(epoch, room, False) for epoch in epochs)])

    def beside_epochs(self, size: int | None, programs: Sequence[Program]) -> Sequence[Program]:
        """Those programs, with batches of the largest samples, unless they come in no epoch: no
        batch that is drawn at random is made of these samples; those of the evaluation are."""
        learned_at, trials = self.learned_at(size), self.trials
        if not trials.epochs.get(learned_at) or learned_at not in trials.drawn:
            return programs
        phases = self._worst(programs, [], None).phases
        trains = max(phases, key=lambda name: phases[name].reserved) == "train"
        return () if trains else programs

    def epochs(self, size: int | None, orders: int | None = ORDERS) -> list[Program]:
        """A card's programs over an epoch, with the sizes of this kind of card; where none was
        learned at the size, about those of the nearest one. [] where batches are alike. `orders`:
        how many of them; None: all."""
        nearest, programs = self.learned_at(size), self.trials.epochs
        if nearest == size or size is None:
            return [self.here(program) for program in programs.get(size, ())[:orders]]
        return scaled(self.epochs(nearest, orders), nearest or 1, size, self.fixed_sizes)

    def learned_at(self, size: int | None) -> int | None:
        """The batch size nearest to one at which an epoch was learned; itself where none was."""
        known = [at for at, programs in self.trials.epochs.items() if programs]
        if size in self.trials.epochs or size is None or not known:
            return size
        return min(known, key=lambda at: abs((at or 0) - size))

    def knows_epochs_near(self, size: int) -> bool:
        """Whether an epoch was learned near a size, or batches are alike: the fewer samples in a
        batch, the more batches differ."""
        nearest = self.learned_at(size) or size
        return nearest <= NEAR * size and size <= NEAR * nearest

    def is_least(self, size: int | None) -> bool:
        """Whether batches may be uneven, and no epoch is known at a size or near it."""
        known = any(self.trials.epochs.values()) and (size is None or self.knows_epochs_near(size))
        return self.may_be_uneven and not self.trials.is_even(size) and not known

    @property
    def fixed_sizes(self) -> frozenset[int]:
        """Bytes of allocations at the smallest size that trained: at larger ones those of gradients
        and the like are among them, and nothing that grows is."""
        smallest = self.programs(min(self.trials.completed(), key=lambda size: size or 0))
        return frozenset(nbytes for program in smallest for nbytes in program.sizes)

    def extrapolated(self, model: SizeModel, size: int) -> Replayers:
        """The replays at a size that was not traced."""
        sizes = tuple(model.sizes_at(size))
        return self.replayers(size, [model.program.of_sizes(sizes, model.program.args)])

    @cached_property
    def may_be_uneven(self) -> bool:
        trials = self.trials
        worst = [report.worst_batch for report in trials.representative().reports]
        return any(batch is not None and batch.varies for batch in worst) or any(
            vary_by_batch(program, whole_steps(trials.results[size]))
            for size in trials.completed()
            for program in trials.read(size).programs
        )

    def learn_epochs(self, size: int | None, model: SizeModel | None = None) -> None:
        """What an epoch takes at a size whose batches are of uneven sizes. `model`: that holds
        there, where it was not traced."""
        trials = self.trials
        learned = trials.is_even(size) or size in trials.epochs
        if learned or not (trials.completed() and self.may_be_uneven):
            return
        programs = self.programs(size) if size in trials.results else ()
        if not programs and model is not None and size is not None:
            sizes = tuple(model.sizes_at(size))
            programs = model.program.of_sizes(sizes, model.program.args).cards
        trials.learn_epochs(size, programs)

    def traced(self, size: int) -> Traced:
        """What a trial shows to a search. Of another unknown memory alone says whether the script
        follows it.
        """
        trials = self.trials
        result = trials.result(size, searching=True)
        whole, in_batches = trials.read(size).whole, trials.in_batches
        by_input = main_loader(result) is None and bool(result.reports)
        batch = input_size(result.reports[0]) if by_input else largest_batch(result)
        return Traced(
            outcome=result.outcome,
            program=training_of(self.joined(size), trials.evaluation_of) if whole else None,
            dataset_length=dataset_length(result) if in_batches else None,
            failure=None
            if result.outcome is Outcome.COMPLETED
            else script_error(trials.session, result, noun_of(trials.unknown), size),
            samples_per_step=result.samples_per_step if in_batches else None,
            batch=batch if in_batches else None,
            by_input=by_input,
        )

    # --- the card, as the program meets it

    @cached_property
    def gpu(self) -> Gpu:
        """With the context that the program has on it."""
        trials, gpu = self.trials, self.device.gpu
        assert gpu is not None
        sizes = trials.completed() or trials.results
        first = next(iter(sizes))
        if trials.in_batches:  # a search begins there, after trials that found a place
            first = min(sizes, key=lambda size: abs((size or 0) - FIRST_SIZE))
        programs = self.programs(first)
        fullest = trials.trace(first) if len(programs) > 1 else None
        if fullest is not None:
            programs = (self.here(program_of(fullest)),)
        program = programs[0] if len(programs) == 1 else NOTHING
        return with_its_context(gpu, trials.results[first], program)

    @cached_property
    def card(self) -> Card:
        trials, gpu = self.trials, self.gpu
        context, reports = gpu.context_bytes, trials.representative().reports
        ranks = any(count > 1 for report in reports for count in report.communicators)
        return Card(
            budget_bytes=self.budget.bytes,
            context_bytes=int(context.value),
            context_slack_bytes=slack_of(context),
            interval=of_several_ranks(ALLOCATOR) if ranks else ALLOCATOR,
            settings=settings_in({**os.environ, **trials.command.environment}),
            capacity_bytes=max(
                0, min(capacity_bytes(self.device), self.budget.bytes - int(context.value))
            ),
            calibration=gpu.calibration,
        )


def view_of(session: Session, began: Start, settings: Mapping[str, Setting], **more) -> CardView:
    """The trials of a command with these settings besides the size, as its first card reads them.
    `more`: further fields of `Trials`.
    """
    return CardView(
        Trials(session, began.command, began.device, settings, **more), began.device, began.budget
    )


def with_its_context(gpu: Gpu, result: TrialResult, program: Program) -> Gpu:
    """The card with the context that a trial's program has on it: with cuDNN's for convolutions,
    and NCCL's for its groups.
    """
    uses_cudnn = any("conv" in name for name in program.operations)
    communicators = max((report.communicators for report in result.reports), key=len, default=[])
    return replace(gpu, context_bytes=context_of(gpu, uses_cudnn, communicators))


def search(view: CardView, asked: int | None) -> MemoryConclusion:
    """The largest size for the command, by few traces.

    Raises the errors of a command that does not train.
    """
    trials = view.trials
    first, multiple_of = first_that_trains(trials, asked)
    trials.asked = asked
    if view.device is trials.device:
        trials.look_at_the_evaluation()

    limits = replace(trials.limits(), over_an_epoch=_largest_by_its_epoch(view, asked, first))
    goal = Goal.NEAR if trials.in_batches and view.may_be_uneven else Goal.TRACED
    goal = Goal.PREDICTED if view.is_read else goal
    steps = search_largest(
        view.card, limits, first, multiple_of, view.begins_with, trials.unknown, asked, goal
    )
    conclusion = run_search(steps, view.traced)
    view.conclusion = conclusion = _over_an_epoch(view, conclusion)
    return conclusion


def _largest_by_its_epoch(view: CardView, asked: int | None, first: int) -> int | None:
    """About the largest batch size that fits over an epoch, where the requested one was traced and
    its own does not fit: no larger one is traced with the largest samples, which no epoch has."""
    if asked not in view.trials.completed() or not view.trials.in_batches or view.is_read:
        return None
    assert asked is not None
    view.learn_epochs(asked)
    programs = view.epochs(asked) if asked in view.trials.drawn else []
    if all(view.card.fits(partial(view.card.replay, program)) for program in programs):
        return None
    largest = largest_scaled(view.card, asked, programs, 0, asked, view.fixed_sizes)
    return max(first, largest)


def _over_an_epoch(view: CardView, conclusion: MemoryConclusion) -> MemoryConclusion:
    """The largest size that fits over an epoch of uneven batches as well."""
    estimate, trials, model = conclusion.estimate, view.trials, conclusion.size_model
    most = estimate.largest_batch_size
    if most is None:
        return conclusion

    def learned(size: int) -> Sequence[Program]:
        if not view.is_read:
            view.learn_epochs(size, model)
        return view.epochs(size, None)

    view.learn_epochs(max(conclusion.traced) if view.is_read else most, model)
    if not any(trials.epochs.values()):
        return conclusion
    ceiling, limit = most, estimate.limited_by
    if limit == "budget" and view.learned_at(most) in trials.drawn:
        ceiling, limit = MOST_RISE * most, f"brimful, which tries none above {MOST_RISE * most:,}"
        upper, name = upper_limit(trials.limits())
        if upper is not None and upper <= ceiling:
            ceiling, limit = upper, name
    multiple_of = conclusion.multiple_of
    left = MOST_TRACES - len(conclusion.traced)
    search = largest_over_an_epoch(view.card, most, ceiling, multiple_of, view.fixed_sizes, left)
    end = run_search(search, learned)
    if end.ended_by == SCRIPT:
        failed = trials.failed_epochs[end.at]
        limit = script_error(trials.session, failed, noun_of(trials.unknown), end.at)
    elif end.ended_by == MEMORY:
        limit = "budget"
    notes = conclusion.notes
    if end.untried and end.largest is not None:
        sizes = f"between {end.largest:,} and {end.at:,}"
        notes += (f"batch size {end.largest:,} fits over an epoch; {sizes} none was looked at",)
    estimate = replace(estimate, exact=False, largest_batch_size=end.largest, limited_by=limit)
    return replace(conclusion, estimate=estimate, notes=notes)


def search_notes(conclusion: MemoryConclusion) -> list[Diagnostic]:
    """What the search noticed; and what that means for the answer, where no trace confirmed the
    extrapolated sizes.
    """
    explanation = "brimful takes the answer from trials, not from extrapolated allocation sizes"
    if conclusion.estimate.method == "extrapolated":
        explanation = ""
    return [Diagnostic("search", note, explanation, "") for note in conclusion.notes]


def nothing_fits(view: CardView, conclusion: MemoryConclusion) -> DoesNotFit:
    """The error where the search names no batch size."""
    smallest, trials = min(conclusion.traced, default=1), view.trials
    result, noun = trials.results.get(smallest), noun_of(trials.unknown)
    fits, needs = "fits", "it runs out of memory"
    peak = result.peak.device_bytes if result and result.peak else None
    if peak is not None and result and result.outcome is Outcome.COMPLETED:
        interval = format_interval(*view.card.around(peak), peak)
        fits = "fits" if peak > view.budget.bytes else "is sure to fit"
        needs = f"it needs {format_bytes(peak)} ({interval}) of device memory"
    words = shlex.join(fill(trials.command, trials.settings_at(smallest)))
    return DoesNotFit(
        problem=f"no {noun} {fits}: at {noun} {smallest} {needs}",
        explanation=f"the budget is {format_bytes(view.budget.bytes)} ({view.budget.why})",
        suggestion="brimful predict shows what would make it fit, with the same options and this "
        f"command:\n-- {words}",
    )
