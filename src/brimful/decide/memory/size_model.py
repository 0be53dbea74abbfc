"""The size of each allocation as a function of the batch size, fitted through two traces, or three
where it is quadratic in the batch (every sample against every other).

The peak of a run is not affine in its batch size, since it occurs elsewhere at another size. But
each allocation's size is, and their order stays: the peak at any size comes from replaying the
program with the sizes computed anew.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import lcm

from brimful.units import format_bytes
from brimful_inside.simulator import workspaces
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, AllocatorSettings
from brimful_inside.simulator.program import Program
from brimful_inside.simulator.replay import Replayed, replay_cards, worst_of

ROUNDED_TO = 2, 3, 4, 5, 8, 16, 32, 64, 128  # what scripts round a size up or down to multiples of
ROUNDINGS = [(step, added) for step in ROUNDED_TO for added in (step - 1, 0)]  # up, then down
# assumed: at so many times the sizes that were traced, most of what is alive grows with the batch
LARGE = 100


@dataclass(frozen=True)
class Polynomial:
    """A quantity (bytes, or a length) as (constant + linear × B + quadratic × B²) / divisor,
    rounded up, where B is the batch size; or, where the script rounds that, the number of groups in
    it: (batch size + `added`) // `group`.

    `exact`: it is a whole number at every B. Where it is not, something was rounded in the script
    otherwise, and the polynomial is an approximation.
    """

    constant: int
    linear: int = 0
    quadratic: int = 0
    divisor: int = 1
    exact: bool = True
    group: int = 1
    added: int = 0  # group - 1: a group that is begun counts

    def at(self, batch_size: int) -> int:
        batch_size = (batch_size + self.added) // self.group
        return -(
            -(self.constant + batch_size * (self.linear + batch_size * self.quadratic))
            // self.divisor
        )


def fit_polynomial(points: Sequence[tuple[int, int]]) -> Polynomial:
    """The polynomial of the lowest degree through one to three points (batch size, value), no two
    of them at the same batch size.
    """
    (b1, n1) = points[0]
    if all(value == n1 for _, value in points):
        return Polynomial(n1)
    (b2, n2) = points[1]
    rise, rest = divmod(n2 - n1, b2 - b1)
    if not rest and all(value == n1 + rise * (batch_size - b1) for batch_size, value in points[2:]):
        return Polynomial(n1 - rise * b1, rise)  # nearly every one, without fractions
    slope = Fraction(n2 - n1, b2 - b1)
    bend = Fraction(0)
    if len(points) == 3:
        (b3, n3) = points[2]
        bend = (Fraction(n3 - n2, b3 - b2) - slope) / (b3 - b1)
    linear = slope - bend * (b1 + b2)
    constant = n1 - linear * b1 - bend * b1 * b1
    divisor = lcm(constant.denominator, linear.denominator, bend.denominator)
    # Whole at every whole B: the constant is whole, and so are the coefficients of B and of
    # B(B-1)/2.
    exact = (
        constant.denominator == 1
        and (2 * bend).denominator == 1
        and (linear + bend).denominator == 1
    )
    return Polynomial(
        int(constant * divisor), int(linear * divisor), int(bend * divisor), divisor, exact
    )


Workspace = tuple[str, tuple[Polynomial, ...]]  # a workspace's name and its args


@dataclass(frozen=True)
class SizeModel:
    """A program and the size of each of its allocations as a function of the batch size."""

    program: Program
    polynomials: tuple[Polynomial, ...]  # the different ones
    polynomial_of: tuple[
        int, ...
    ]  # of each allocation, as a place in `polynomials`; -1: it is one of `workspace_of`
    workspace_of: dict[int, Workspace]  # by the numbers of their allocations
    fitted_at: tuple[
        int, ...
    ]  # batch sizes; of a search's answer all that were traced and that it gives to the byte
    # the sizes are of the batch's share of so many cards of a process; of an uneven batch that of
    # the first
    per: int = 1

    @cached_property
    def exact(self) -> bool:
        """No polynomial had to be rounded."""
        return all(polynomial.exact for polynomial in self.all_polynomials)

    @cached_property
    def constant(self) -> bool:
        """Nothing depends on the batch size."""
        return all(
            polynomial.linear == 0 == polynomial.quadratic for polynomial in self.all_polynomials
        )

    @cached_property
    def superlinear(self) -> bool:
        """Some allocation grows faster than the batch: a line through two points starts below
        nothing.
        """
        return any(
            polynomial.constant < 0 < polynomial.linear for polynomial in self.all_polynomials
        )

    @cached_property
    def identity(self) -> tuple:
        """Equal for models that give the same sizes, whichever traces they were fitted through."""
        return (
            self.program.digest,
            self.polynomials,
            self.polynomial_of,
            tuple(sorted(self.workspace_of.items())),
        )

    @cached_property
    def all_polynomials(self) -> list[Polynomial]:
        return [*self.polynomials, *(arg for _, args in self.workspace_of.values() for arg in args)]

    def sizes_at(self, batch_size: int) -> list[int]:
        """The bytes of each allocation, by its number; never below 0."""
        batch_size = -(-batch_size // self.per)
        values = [max(0, polynomial.at(batch_size)) for polynomial in self.polynomials]
        sizes = [values[index] for index in self.polynomial_of]
        for (name, args), numbers in self._by_workspace.items():
            nbytes = max(
                0, workspaces.bytes_of(name, [polynomial.at(batch_size) for polynomial in args])
            )
            for number in numbers:
                sizes[number] = nbytes
        return sizes

    @cached_property
    def _by_workspace(self) -> dict[Workspace, list[int]]:
        """The same workspaces come again in each layer and step."""
        numbers: dict[Workspace, list[int]] = {}
        for number, workspace in self.workspace_of.items():
            numbers.setdefault(workspace, []).append(number)
        return numbers

    def replay_at(
        self,
        batch_size: int,
        settings: AllocatorSettings = DEFAULT_SETTINGS,
        capacity_bytes: int | None = None,
    ) -> Replayed:
        """The peaks by phase at a batch size, on a card with `capacity_bytes` for segments (None:
        without limit), under other assumptions as well. Of several cards the worst."""
        return worst_of(
            replay_cards(self.program, self.sizes_at(batch_size), settings, capacity_bytes, True)
        )

    def least_bytes_at(self, batch_size: int) -> int:
        """What is alive at one moment on a card: no allocator gets by with less."""
        batch_size = -(-batch_size // self.per)
        plain, taken = self._held
        bytes_of = workspaces.bytes_of
        return sum(
            count * max(0, self.polynomials[index].at(batch_size)) for index, count in plain.items()
        ) + sum(
            count * bytes_of(name, [arg.at(batch_size) for arg in args])
            for (name, args), count in taken.items()
        )

    def replay_cards_at(
        self, batch_size: int, settings: AllocatorSettings = DEFAULT_SETTINGS
    ) -> list[Replayed]:
        """As `replay_at`, each card alone."""
        return replay_cards(self.program, self.sizes_at(batch_size), settings)

    @cached_property
    def _held(self) -> tuple[Counter[int], Counter[Workspace]]:
        """What is alive at one moment on one card, that at which most bytes are at a large batch
        size: by place in `polynomials`, and workspaces, how many allocations each."""
        sizes = list(self.sizes_at(LARGE * max(self.fitted_at)))
        for number, (name, _) in self.workspace_of.items():
            if name in workspaces.OF_PLANS:  # without room for them they are not taken
                sizes[number] = 0
        alive = [number for number in self.program.largest_live_set(sizes) if sizes[number]]
        return (
            Counter(index for number in alive if (index := self.polynomial_of[number]) >= 0),
            Counter(self.workspace_of[number] for number in alive if number in self.workspace_of),
        )

    def difference_from(self, program: Program, batch_size: int) -> str | None:
        """The first row in which a trace taken at `batch_size` differs; None: the model gives it to
        the byte.
        """
        if not self.program.same_events(program):
            return self.program.difference(program)
        for number, (mine, theirs) in enumerate(
            zip(self.sizes_at(batch_size), program.sizes, strict=True)
        ):
            if mine != theirs:
                took, expected = (format_bytes(size) for size in (theirs, mine))
                if took == expected:
                    took, expected = (f"{size:,} bytes" for size in (theirs, mine))
                return (
                    f"{self.program.allocations[number][1]} took {took} instead of the {expected} "
                    "expected from other sizes"
                )
        return None


def fit_size_model(programs: dict[int, Program]) -> SizeModel | None:
    """The sizes fitted through programs at one to three batch sizes; None if their events differ.

    One program alone gives sizes that do not depend on the batch size.
    """
    sizes = sorted(programs)
    first = programs[sizes[0]]
    if any(not first.same_events(programs[size]) for size in sizes[1:]):
        return None
    places: dict[Polynomial, int] = {}
    known: dict[tuple[int, ...], int] = {}  # places by the values fitted
    known_workspaces: dict[tuple, Workspace] = {}
    polynomial_of: list[int] = []
    workspace_of: dict[int, Workspace] = {}
    for number, values in enumerate(zip(*(programs[size].sizes for size in sizes), strict=True)):
        name = first.allocations[number][2]
        if name is not None:
            args = tuple(programs[size].args[number] for size in sizes)
            if (name, args) not in known_workspaces:
                known_workspaces[name, args] = (
                    name,
                    tuple(_fit(sizes, column) for column in zip(*args, strict=True)),
                )
            workspace_of[number] = known_workspaces[name, args]
            polynomial_of.append(-1)
            continue
        if values not in known:
            known[values] = places.setdefault(_fit(sizes, values), len(places))
        polynomial_of.append(known[values])
    polynomials = tuple(places) or (Polynomial(0),)  # a program may be made of workspaces alone
    return SizeModel(first, polynomials, tuple(polynomial_of), workspace_of, tuple(sizes))


def _fit(batch_sizes: Sequence[int], values: Sequence[int]) -> Polynomial:
    """The polynomial through the values; where it is none in whole numbers, a multiple of what
    scripts round a batch size to, or of its square."""
    plain = fit_polynomial(list(zip(batch_sizes, values, strict=True)))
    if plain.exact:
        return plain
    for group, added in ROUNDINGS:
        groups = [(size + added) // group for size in batch_sizes]
        for power in (1, 2):
            factor, rest = divmod(values[-1], max(1, groups[-1]) ** power)
            if not rest and all(
                value == factor * count**power for count, value in zip(groups, values, strict=True)
            ):
                return Polynomial(
                    0, *((factor, 0) if power == 1 else (0, factor)), group=group, added=added
                )
    return plain


@dataclass(frozen=True)
class TrustedModel:
    """A model, and how far it can be trusted."""

    size_model: SizeModel
    reproduced: tuple[int, ...]  # traced sizes that it gives to the byte

    @property
    def verified(self) -> bool:
        return self.size_model.exact and len(self.reproduced) > len(self.size_model.fitted_at)


@dataclass
class Fitted:
    """A model of some of the traces, if they have one, and which traces it gives to the byte, each
    looked at once.
    """

    model: SizeModel | None
    _gives: dict[int, bool]

    def gives(self, size: int, program: Program) -> bool:
        if size not in self._gives:
            self._gives[size] = (
                self.model is not None and self.model.difference_from(program, size) is None
            )
        return self._gives[size]


def most_trusted(
    programs: dict[int, Program],
    frontier: list[int],
    known: dict[tuple[int, ...], Fitted] | None = None,
) -> TrustedModel | None:
    """The model, of all that two or three traces give, that is to be trusted most near the
    frontier.

    First those that give the traces at the frontier to the byte, then those without rounding that
    give the most traces, then the plainest. None where no two traces have the same events. `known`:
    what was fitted to these traces before.
    """
    known = {} if known is None else known
    best: tuple[tuple[int, int, int, int], TrustedModel] | None = None
    for count in (2, 3):
        for sizes in combinations(sorted(programs), count):
            if sizes not in known:
                fitted = fit_size_model({size: programs[size] for size in sizes})
                # Any three points have a parabola: it says something if its numbers are whole and
                # it does not fall.
                if fitted is not None and count == 3:
                    falls = any(part.quadratic < 0 for part in fitted.all_polynomials)
                    fitted = fitted if fitted.exact and not falls else None
                known[sizes] = Fitted(fitted, dict.fromkeys(sizes, True))
            model = known[sizes].model
            if model is None:
                continue
            reproduced = tuple(n for n in programs if known[sizes].gives(n, programs[n]))
            near = sum(size in reproduced for size in frontier)
            distance = sum(abs(size - frontier[-1]) for size in sizes)
            rank = (near, len(reproduced) if model.exact else 0, -count, -distance)
            if best is None or rank > best[0]:
                best = (rank, TrustedModel(model, reproduced))
        if (
            best is not None
            and len(best[1].reproduced) == len(programs)
            and best[1].size_model.exact
        ):
            break
    return best[1] if best is not None else None
