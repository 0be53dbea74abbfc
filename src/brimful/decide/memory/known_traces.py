"""What the traces of a search have shown so far."""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial

from brimful.decide.memory.bracket import Bracket
from brimful.decide.memory.fit import Card, ExtrapolatedPeaks
from brimful.decide.memory.size_model import (
    Fitted,
    SizeModel,
    TrustedModel,
    most_trusted,
)
from brimful.outcomes import SCRIPT_FAILED
from brimful.values import Outcome
from brimful_inside.simulator.program import Program
from brimful_inside.simulator.replay import Replayed

MOST_TRACES = 5  # for one card, besides those that its search begins with
# Where the script itself fails at larger sizes, and trials alone show from where on; until a size
# fits that is larger than the first two; and while the bracket is wide.
MOST_TRIALS = 12
MOST_MODELLED = 6  # of the traces, those among which models are sought: of each two and three
APART_IN_STEPS = 4  # values that are nearer may be padded to the same
# How a trial ends that takes more of this computer than a search of another setting may.
_BEYOND_HOST = Outcome.TIMED_OUT, Outcome.OUT_OF_HOST_MEMORY


@dataclass(frozen=True)
class Traced:
    """What a trial showed."""

    outcome: Outcome
    program: Program | None = None  # of all cards; None where a trace is missing or cut off
    dataset_length: int | None = None  # once it is known: no larger batch size is tried
    # Of the script itself: its error and the batch size, as what limits the batch size.
    failure: str | None = None
    samples_per_step: int | None = None
    batch: int | None = None  # the largest that the training loader of a process gave
    by_input: bool = False  # there is no loader: `batch` is of the model's input

    @property
    def whole(self) -> Program | None:
        """The program of a trial that came to its end."""
        return self.program if self.outcome is Outcome.COMPLETED else None


@dataclass
class TracedSizes:
    """The traces so far. Sizes are the bracket's."""

    card: Card
    bracket: Bracket
    begun: int = 0  # sizes whose traces were there before
    small: int = 0  # the largest that fits of the first ones
    programs: dict[int, Program] = field(default_factory=dict)
    replayed: dict[int, Replayed] = field(default_factory=dict)
    out_of_memory: set[int] = field(default_factory=set)  # ran out of device memory
    steps: set[int | None] = field(
        default_factory=set
    )  # samples that went into a step, over all traces
    predicted: dict[tuple, ExtrapolatedPeaks] = field(default_factory=dict)
    fitted: dict[tuple[int, ...], Fitted] = field(
        default_factory=dict
    )  # by the sizes of the traces
    held_back: dict[int, Traced] = field(
        default_factory=dict
    )  # traced, and not learned: see `trace`

    def most_trusted(self, frontier: list[int] | None = None) -> TrustedModel | None:
        """The model to be trusted most near these sizes, near the edge of what fits where none are
        named.
        """
        if not self.programs:
            return None
        frontier = frontier or self.frontier
        near = sorted(self.programs, key=lambda size: abs(size - frontier[-1]))[:MOST_MODELLED]
        programs = {size: self.programs[size] for size in sorted(near)}
        return most_trusted(programs, frontier, self.fitted)

    @property
    def trials_left(self) -> int:
        low = self.bracket.low
        goes_on = self.bracket.script_error_above(low) or (low or 0) <= self.small
        goes_on = goes_on or self.bracket.is_wide
        most = MOST_TRIALS if goes_on else MOST_TRACES
        return most - len(self.bracket.tried) + self.begun

    def peaks_of(self, model: SizeModel) -> ExtrapolatedPeaks:
        return self.predicted.setdefault(model.identity, ExtrapolatedPeaks(model, self.card))

    def trace(self, size: int, only_if_it_fits: bool = False) -> Generator[int, Traced, None]:
        """Trace this size, and keep what it showed. `only_if_it_fits`: what does not is held back
        until somebody traces it.
        """
        traced = self.held_back.pop(size, None)
        if traced is None:
            traced = yield self.bracket.samples(size)
        program = traced.whole
        if not only_if_it_fits or (program and self.card.fits(partial(self.card.replay, program))):
            self.learn(size, traced)
        else:
            self.held_back[size] = traced

    def learn(self, size: int, traced: Traced) -> None:
        bracket, program = self.bracket, traced.whole
        bracket.tried.append(size)
        bracket.learn_dataset_length(traced.dataset_length)
        if traced.outcome is Outcome.OUT_OF_DEVICE_MEMORY:
            self.out_of_memory.add(size)
            bracket.too_large.add(size)
        elif program is None:
            outcome = Outcome.CRASHED if traced.outcome is Outcome.COMPLETED else traced.outcome
            bracket.add_script_error(size, traced.failure, outcome)
            if outcome in _BEYOND_HOST and not bracket.in_batches:
                bracket.beyond_host.add(size)
            may_train_below = outcome in SCRIPT_FAILED or size in bracket.beyond_host
            if not may_train_below or not self.programs:
                bracket.failed = outcome
        else:
            self.steps.add(traced.samples_per_step)
            bracket.learn_given(size, traced.batch, traced.samples_per_step, traced.by_input)
            self.programs[size] = program
            replayer = partial(self.card.replay, program)
            self.replayed[size] = replayer(self.card.capacity_bytes)
            (bracket.fitting if self.card.fits(replayer) else bracket.too_large).add(size)

    @property
    def unfollowed(self) -> int | None:
        """The second largest size that was traced, where the largest takes exactly as much memory,
        while a smaller one takes less, or where both accumulate the same batches to steps of their
        size: the script's memory does not follow the size. None where it does, or where
        `Bracket.ignored` will tell."""
        given = {size: self.bracket.given.get(self.bracket.samples(size)) for size in self.programs}
        held = {size: sum(program.sizes) for size, program in sorted(self.programs.items())}
        if (
            len(held) < 2
            or self.bracket.ignored
            or (self.bracket.low is not None and self.bracket.low == self.bracket.upper)
        ):
            return None
        *smaller, small, large = held
        at_small, at_large = given[small], given[large]
        if at_small is not None and at_large is not None:
            peaks = {self.replayed[size].peak.allocated for size in (small, large)}
            same = at_small.batch == at_large.batch and at_small != at_large and len(peaks) == 1
        else:
            same = (
                large >= APART_IN_STEPS * small
                and held[small] == held[large]
                and any(held[size] < held[small] for size in smaller)
            )
        return small if same else None

    @property
    def frontier(self) -> list[int]:
        """The two traced sizes nearest to the edge of what fits."""
        sizes = sorted(self.programs)
        below = [size for size in sizes if size in self.bracket.fitting]
        above = [size for size in sizes if size not in self.bracket.fitting]
        return sorted(below[-1:] + above[:1] if below and above else below[-2:] or above[:2])

    def all_alike(self, model: TrustedModel) -> bool:
        """Whether all that was traced takes the same memory; sizes near each other may only be
        padded to the same.
        """
        return model.size_model.constant and len(model.reproduced) == len(self.programs)

    def trusts(self, model: TrustedModel) -> bool:
        """Whether the model says what sizes take that were not traced."""
        return (self.bracket.in_batches or model.verified) and (
            not model.size_model.constant or self.all_alike(model)
        )

    def is_sure(self, model: TrustedModel | None) -> bool:
        """Whether a trace confirmed it, that of the largest that fits as well, and none above that
        speaks against it.
        """
        low = self.bracket.low
        if model is None or self._is_refuted(model):
            return False
        sure = model.verified and self.trusts(model) and (low is None or low in model.reproduced)
        return sure and not self.promises(model, self.bracket.high)

    def predicts(self) -> bool:
        """Whether a model gives what no trace has shown: one that a trace confirmed, or of batch
        sizes one that no trace speaks against."""
        model = self.most_trusted()
        if model is None or model.size_model.constant:
            return False
        if not self.bracket.in_batches:
            return self.is_sure(model)
        gives_all = model.size_model.exact and len(model.reproduced) == len(self.programs)
        return self.is_sure(model) or (gives_all and not self.promises(model, self.bracket.high))

    def _is_refuted(self, model: TrustedModel) -> bool:
        """Whether it does not give a larger trace of the same operations: those that it gives may
        lie on a line by chance, as 276, 278 and 280, rounded up to threes, do."""
        sizes, low = model.size_model, self.bracket.low or 0
        return any(
            sizes.program.same_events(program) and sizes.difference_from(program, size)
            for size, program in self.programs.items()
            if size > low and size not in model.reproduced
        )

    def promises(self, model: TrustedModel | None, size: int | None) -> bool:
        """Whether it says that a size fits."""
        return model is not None and size is not None and self.peaks_of(model.size_model).fits(size)

    def upper_if_grown(self, size: int, factor: float) -> float:
        """The upper end of the device peak if all that the script holds at a traced size were
        `factor` times as much.
        """
        replayed, card = self.replayed[size], self.card
        if replayed.full is not None:
            return float("inf")
        return card.around(card.context_bytes + factor * replayed.peak.reserved)[1]
