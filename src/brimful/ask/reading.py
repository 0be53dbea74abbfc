"""What the verbs share on an imaginary card: the trials as a card reads them, and the search
for the largest batch size.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

from brimful.ask.epochs import Epochs
from brimful.ask.shown_once import training_of
from brimful.ask.traces import Trials, capacity_bytes
from brimful.decide.loaders_seen import (
    dataset_length,
    input_size,
    largest_batch,
    main_loader,
    whole_steps,
)
from brimful.decide.memory.fit import Card, Replayer, context_of, slack_of
from brimful.decide.memory.intervals import ALLOCATOR, of_compiled, of_several_ranks
from brimful.decide.memory.known_traces import Traced
from brimful.decide.memory.search_traced import (
    FIRST_SIZE,
    MemoryConclusion,
)
from brimful.decide.memory.size_model import SizeModel
from brimful.decide.memory.strays import on_the_fullest, strays
from brimful.decide.memory.uneven import (
    ORDERS,
    scaled,
    vary_by_batch,
)
from brimful.trials.results import script_error
from brimful.trials.session import Session
from brimful.trials.start import Start
from brimful.units import noun_of
from brimful.values import (
    Budget,
    Device,
    Estimate,
    Gpu,
    Outcome,
    PeakEstimate,
    Setting,
    TrialResult,
    Verdict,
)
from brimful_inside.simulator.allocator_settings import settings_in
from brimful_inside.simulator.program import NOTHING, Program, joined, program_of
from brimful_inside.simulator.replay import Replayed, worst_of


@dataclass(frozen=True)
class MemoryAnswer:
    """The peak of a command at a size, and the search it comes from."""

    size: int | None  # the batch size, or what else was unknown; None: the command as it stands
    verdict: Verdict
    peak: PeakEstimate | None
    phases: dict[str, PeakEstimate]
    retries_per_step: float | None = None  # how often cached memory is given back to go on
    giving_back_s: Estimate | None = None  # the time of a step that this takes
    conclusion: MemoryConclusion | None = None  # None: nothing was searched
    # where batches are uneven: with every batch of the largest samples, whose peak is no epoch's
    alone: PeakEstimate | None = None
    # of the device on the whole card, where that is more than a budget below the card's memory
    unlimited_bytes: int | None = None
    # what each step or evaluation batch leaves fills the card by the end; no search for the largest
    # size counts it
    fills_up: bool = False

    @property
    def largest(self) -> int | None:
        """The largest that fits, where it was searched for."""
        return self.conclusion.estimate.largest_batch_size if self.conclusion is not None else None


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
    uneven: Epochs
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
        learned_at = self.uneven.learned_at(size)
        if not self.uneven.programs.get(learned_at) or learned_at not in self.uneven.drawn:
            return programs
        phases = self._worst(programs, [], None).phases
        trains = max(phases, key=lambda name: phases[name].reserved) == "train"
        return () if trains else programs

    def epochs(self, size: int | None, orders: int | None = ORDERS) -> list[Program]:
        """A card's programs over an epoch, with the sizes of this kind of card; where none was
        learned at the size, about those of the nearest one. [] where batches are alike. `orders`:
        how many of them; None: all."""
        nearest, programs = self.uneven.learned_at(size), self.uneven.programs
        if nearest == size or size is None:
            return [self.here(program) for program in programs.get(size, ())[:orders]]
        return scaled(self.epochs(nearest, orders), nearest or 1, size, self.fixed_sizes)

    def is_least(self, size: int | None) -> bool:
        """Whether batches may be uneven, and no epoch is known at a size or near it."""
        known = self.uneven.are_known and (size is None or self.uneven.are_known_near(size))
        return self.may_be_uneven and not self.uneven.is_even(size) and not known

    @property
    def fixed_sizes(self) -> frozenset[int]:
        """Bytes of allocations at the smallest size that trained: at larger ones those of gradients
        and the like are among them, and nothing that grows is."""
        smallest = self.programs(min(self.trials.completed(), key=lambda size: size or 0))
        return frozenset(nbytes for program in smallest for nbytes in program.sizes)

    def known_replayers(self, size: int | None, model: SizeModel | None) -> Replayers | None:
        """Those at a size, by its trace, else by a model of sizes; None where there is neither."""
        if size in self.trials.completed():
            return self.traced_replayers(size)
        if size is None or model is None or size < min(model.fitted_at):
            return None
        return self.extrapolated(model, size)

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
        learned = self.uneven.is_even(size) or size in self.uneven.programs
        if learned or not (trials.completed() and self.may_be_uneven):
            return
        programs = self.programs(size) if size in trials.results else ()
        if not programs and model is not None and size is not None:
            sizes = tuple(model.sizes_at(size))
            programs = model.program.of_sizes(sizes, model.program.args).cards
        self.uneven.learn(size, programs)

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
            program=training_of(self.joined(size), trials.shown_whole) if whole else None,
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
        approximations = [name for report in reports for name in report.approximations]
        interval = of_several_ranks(ALLOCATOR) if ranks else ALLOCATOR
        return Card(
            budget_bytes=self.budget.bytes,
            context_bytes=int(context.value),
            context_slack_bytes=slack_of(context),
            interval=of_compiled(interval, approximations),
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
    trials = Trials(session, began.command, began.device, settings, **more)
    return CardView(trials, began.device, began.budget, Epochs(trials))


def with_its_context(gpu: Gpu, result: TrialResult, program: Program) -> Gpu:
    """The card with the context that a trial's program has on it: with cuDNN's for convolutions,
    NCCL's for its groups, and what other ranks hold there.
    """
    uses_cudnn = any("conv" in name for name in program.operations)
    communicators = max((report.communicators for report in result.reports), key=len, default=[])
    beside = on_the_fullest(strays(result.reports))
    return replace(gpu, context_bytes=context_of(gpu, uses_cudnn, communicators, beside))
