"""Each allocation as a law of the batch size: two traces (three where batch meets batch) answer every batch size.

The peak of a run is not affine in its batch size, for the moment of the peak moves. But each allocation's size is, and the
order of allocations stays, so that the peak at any size comes from replaying the list with the sizes computed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm

from brimful.decide.cards import worst_of
from brimful.decide.memory.program import Program
from brimful.decide.replays import play_cards, play_cards_up_to
from brimful_inside.simulator import workspaces
from brimful_inside.simulator.allocator import DEFAULT_SETTINGS, AllocatorSettings
from brimful_inside.simulator.replay import Played

LARGE = 100  # assumed: at so many times the sizes that were traced, most of what is alive grows with the batch


@dataclass(frozen=True)
class Law:
    """A quantity (bytes, or a length) as (constant + linear × B + quadratic × B²) / divisor, rounded up.

    `exact`: it is a whole number at every batch size B. Where it is not, something was rounded in the script (a half of
    the batch, a padding), and the law is an approximation.
    """

    constant: int
    linear: int = 0
    quadratic: int = 0
    divisor: int = 1
    exact: bool = True

    def at(self, batch_size: int) -> int:
        return -(-(self.constant + batch_size * (self.linear + batch_size * self.quadratic)) // self.divisor)


@dataclass(frozen=True)
class Reproduction:
    """Whether laws give what a trace at another batch size shows, row by row and to the byte."""

    exact: bool
    differs_at: str | None = None


def law_through(points: Sequence[tuple[int, int]]) -> Law:
    """The law through two or three points (batch size, value), of the lowest degree that passes through all.

    Raises ValueError for more points, or for two at the same batch size.
    """
    if len({batch_size for batch_size, _ in points}) != len(points) or not 1 <= len(points) <= 3:
        raise ValueError(f"a law goes through one to three different batch sizes, not {[b for b, _ in points]}")
    (b1, n1) = points[0]
    if all(value == n1 for _, value in points):
        return Law(n1)
    (b2, n2) = points[1]
    rise, rest = divmod(n2 - n1, b2 - b1)
    if not rest and all(value == n1 + rise * (batch_size - b1) for batch_size, value in points[2:]):
        return Law(n1 - rise * b1, rise)  # nearly every one, without fractions
    slope = Fraction(n2 - n1, b2 - b1)
    bend = Fraction(0)
    if len(points) == 3:
        (b3, n3) = points[2]
        bend = (Fraction(n3 - n2, b3 - b2) - slope) / (b3 - b1)
    linear = slope - bend * (b1 + b2)
    constant = n1 - linear * b1 - bend * b1 * b1
    divisor = lcm(constant.denominator, linear.denominator, bend.denominator)
    # Whole at every whole B: the constant is whole, and so are the coefficients of B and of B(B-1)/2.
    exact = constant.denominator == 1 and (2 * bend).denominator == 1 and (linear + bend).denominator == 1
    return Law(int(constant * divisor), int(linear * divisor), int(bend * divisor), divisor, exact)


@dataclass(frozen=True)
class SizeModel:
    """A program whose allocations are laws of the batch size."""

    program: Program
    laws: tuple[Law, ...]  # the different ones
    law_of: tuple[int, ...]  # by order of birth: which of `laws` gives the bytes; -1: a workspace computed from `arg_laws`
    arg_laws: dict[int, tuple[str, tuple[Law, ...]]]  # by order of birth: the workspace law and the laws of its args
    fitted_at: tuple[int, ...]  # batch sizes
    per: int = 1  # the laws are of the batch's share of so many cards of a process; of an uneven batch that of the first

    @property
    def exact(self) -> bool:
        """No law had to be rounded."""
        return all(law.exact for law in self.laws) and all(law.exact for _, laws in self.arg_laws.values() for law in laws)

    @property
    def constant(self) -> bool:
        """Nothing depends on the batch size."""
        return all(law.linear == 0 == law.quadratic for law in self._all_laws())

    @property
    def superlinear(self) -> bool:
        """Some allocation grows faster than the batch: a law through two points starts below nothing."""
        return any(law.constant < 0 < law.linear for law in self._all_laws())

    @cached_property
    def identity(self) -> tuple:
        """Equal for laws that say the same, whichever traces they were fitted through."""
        return self.program.digest, self.laws, self.law_of, tuple(sorted(self.arg_laws.items()))

    def _all_laws(self) -> list[Law]:
        return [*self.laws, *(law for _, laws in self.arg_laws.values() for law in laws)]

    def sizes_at(self, batch_size: int) -> list[int]:
        """The bytes of each allocation, by order of birth; never below 0."""
        batch_size = -(-batch_size // self.per)
        values = [max(0, law.at(batch_size)) for law in self.laws]
        sizes = [values[index] for index in self.law_of]
        for (name, laws), births in self._alike.items():
            nbytes = workspaces.bytes_of(name, [law.at(batch_size) for law in laws])
            for birth in births:
                sizes[birth] = nbytes
        return sizes

    @cached_property
    def _alike(self) -> dict[tuple[str, tuple[Law, ...]], list[int]]:
        """Births by the workspace law and its args: the same ones come again in each layer and step."""
        found: dict[tuple[str, tuple[Law, ...]], list[int]] = {}
        for birth, law in self.arg_laws.items():
            found.setdefault(law, []).append(birth)
        return found

    def play_at(
        self, batch_size: int, settings: AllocatorSettings = DEFAULT_SETTINGS, capacity_bytes: int | None = None
    ) -> Played:
        """The peaks by phase at a batch size, on a card with `capacity_bytes` for segments (None: without limit).

        Of several cards the worst.
        """
        return _of_all(self.play_cards_at(batch_size, settings, capacity_bytes))

    def play_cards_at(
        self, batch_size: int, settings: AllocatorSettings = DEFAULT_SETTINGS, capacity_bytes: int | None = None
    ) -> list[Played]:
        """As `play_at`, for each card by itself."""
        return play_cards(self.program, self.sizes_at(batch_size), settings, capacity_bytes)

    def play_up_to(
        self, most_reserved: int, batch_size: int, settings: AllocatorSettings, capacity_bytes: int | None
    ) -> Played | None:
        """As `play_at`; None where any card reserves more than `most_reserved` bytes. Quicker, for the replay ends there.

        Where more than that is alive at one moment no allocator gets by with less, and nothing is replayed.
        """
        sizes = self.sizes_at(batch_size)
        if sum(map(sizes.__getitem__, self._alive_where_most_are)) > most_reserved:
            return None
        played = play_cards_up_to(most_reserved, self.program, sizes, settings, capacity_bytes)
        return played if played is None else _of_all(played)

    @cached_property
    def _alive_where_most_are(self) -> list[int]:
        """Births that are alive at one moment on one card: the moment at which most are, in bytes, at a large batch size."""
        return self.program.alive_where_most_are(self.sizes_at(LARGE * max(self.fitted_at)))

    def reproduces(self, program: Program, batch_size: int) -> Reproduction:
        """Compare with a trace taken at `batch_size`, row by row."""
        difference = self.program.difference(program) if not self.program.same_events(program) else None
        if difference is not None:
            return Reproduction(False, difference)
        sizes = self.sizes_at(batch_size)
        for birth, (mine, theirs) in enumerate(zip(sizes, program.sizes, strict=True)):
            if mine != theirs:
                op = [event[1] for event in self.program.events if event[0] == "malloc"][birth]
                return Reproduction(False, f"allocation {birth} ({op}): {mine} bytes predicted, {theirs} seen")
        return Reproduction(True)


def _of_all(played: list[Played]) -> Played:
    return played[0] if len(played) == 1 else worst_of(played)


def fit_size_model(programs: dict[int, Program]) -> SizeModel | None:
    """Laws through programs at one to three batch sizes; None if their events differ.

    One program alone gives laws that do not depend on the batch size.
    """
    sizes = sorted(programs)
    first = programs[sizes[0]]
    if any(not first.same_events(programs[size]) for size in sizes[1:]):
        return None
    numbers: dict[Law, int] = {}
    cache: dict[tuple[int, ...], int] = {}
    law_of: list[int] = []
    arg_laws: dict[int, tuple[str, tuple[Law, ...]]] = {}
    args_cache: dict[tuple, tuple[str, tuple[Law, ...]]] = {}
    names = [event[2] for event in first.events if event[0] == "malloc"]
    for birth, values in enumerate(zip(*(programs[size].sizes for size in sizes), strict=True)):
        name = names[birth]
        if name is not None:
            args = tuple(programs[size].args[birth] for size in sizes)
            known = args_cache.get((name, args))
            if known is None:
                columns = zip(*args, strict=True)
                known = (str(name), tuple(law_through(list(zip(sizes, column, strict=True))) for column in columns))
                args_cache[name, args] = known
            arg_laws[birth] = known
            law_of.append(-1)
            continue
        index = cache.get(values)
        if index is None:
            law = law_through(list(zip(sizes, values, strict=True)))
            index = cache[values] = numbers.setdefault(law, len(numbers))
        law_of.append(index)
    laws = tuple(numbers) or (Law(0),)  # a program may be made of workspaces alone
    return SizeModel(first, laws, tuple(law_of), arg_laws, tuple(sizes))


def needs_another_trace(programs: dict[int, Program]) -> int | None:
    """The batch size at which one more trace is needed before laws can be trusted to extrapolate; None: they can.

    Two traces do for sizes that are affine in the batch. A third is called for where an allocation grows faster than that
    (batch meets batch). Where the events differ from trace to trace there is no law to be had by more small traces.
    """
    sizes = sorted(programs)
    if len(sizes) == 1:
        return second_size(sizes[0])
    if len(sizes) > 2:
        return None
    laws = fit_size_model(programs)
    if laws is None or not laws.superlinear:
        return None
    return 2 * sizes[1] - sizes[0] + 1


def second_size(first: int) -> int:
    """A size to trace after `first`: a prime distance away, so that a rounding in the script shows as a broken slope."""
    return first + 7
