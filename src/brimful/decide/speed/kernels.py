"""The kernels of a step, extrapolated to any batch size as allocations are: each one's arithmetic,
bytes and lengths.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brimful.decide.memory.size_model import Polynomial, fit_polynomial
from brimful_inside.simulator.roofline import Kernel


@dataclass(frozen=True)
class StepKernels:
    """The kernels of one step at one batch size: the different ones, and which of them ran, in
    order.
    """

    kernels: tuple[Kernel, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class KernelModel:
    """Kernels whose numbers are polynomials of the batch size."""

    kernels: tuple[Kernel, ...]  # the different ones, with the numbers of the smallest trace
    polynomials: tuple[
        tuple[Polynomial, ...], ...
    ]  # of each: flops, bytes, launches, then its lengths
    order: tuple[int, ...]
    fitted_at: tuple[int, ...]  # batch sizes
    exact: bool = True  # the same kernels ran at all sizes

    def at(self, batch_size: int) -> StepKernels:
        kernels = []
        for kernel, polynomials in zip(self.kernels, self.polynomials, strict=True):
            flops, nbytes, launches, *shape = (
                max(0, polynomial.at(batch_size)) for polynomial in polynomials
            )
            kernels.append(
                kernel._replace(flops=flops, bytes=nbytes, launches=launches, shape=tuple(shape))
            )
        return StepKernels(tuple(kernels), self.order)


@dataclass(frozen=True)
class ScaledKernels:
    """Kernels of traces that did not run the same ones: those of the nearest, grown as their kind's
    totals grow.
    """

    traced: Mapping[int, StepKernels]
    totals: Mapping[str, tuple[Polynomial, Polynomial]]  # kind: flops, bytes
    exact: bool = False

    @property
    def fitted_at(self) -> tuple[int, ...]:
        return tuple(sorted(self.traced))

    def at(self, batch_size: int) -> StepKernels:
        nearest = min(self.traced, key=lambda size: (abs(size - batch_size), size))
        step = self.traced[nearest]
        if nearest == batch_size:
            return step
        grown = {
            kind: [_growth(total, nearest, batch_size) for total in totals]
            for kind, totals in self.totals.items()
        }
        kernels = (
            _scaled(kernel, nearest, *grown.get(kernel.kind, (1.0, 1.0))) for kernel in step.kernels
        )
        return StepKernels(tuple(kernels), step.order)


def _growth(total: Polynomial, old: int, new: int) -> float:
    before = total.at(old)
    return max(0.0, total.at(new) / before) if before > 0 else 1.0


def _scaled(kernel: Kernel, batch_size: int, flops: float, nbytes: float) -> Kernel:
    """More of the same: a product grows in its rows, or in what it sums over: where the batch is a
    factor, or the longer.
    """
    shape = list(kernel.shape)
    if len(shape) > 1:
        place = max((1, 3), key=lambda at: (shape[at] % max(1, batch_size) == 0, shape[at]))
        shape[place] = max(1, round(shape[place] * flops))
    return kernel._replace(
        flops=round(kernel.flops * flops), bytes=round(kernel.bytes * nbytes), shape=tuple(shape)
    )


def fit_kernels(
    steps: Mapping[int, Sequence[Kernel]], alike: bool = True
) -> KernelModel | ScaledKernels | None:
    """The kernels of traces, by batch size, at any other; None without a step. One trace gives
    numbers that do not grow.

    Without `alike` it is known that not all sizes run the same kernels, though some may: then no
    polynomial is of all sizes.
    """
    steps = {size: kernels for size, kernels in sorted(steps.items()) if kernels}
    if not steps:
        return None
    chosen = _alike(steps)
    if len(steps) > 1 and (len(chosen) == 1 or not alike):
        traced = {}
        for size, kernels in steps.items():
            places = {kernel: place for place, kernel in enumerate(dict.fromkeys(kernels))}
            traced[size] = StepKernels(tuple(places), tuple(map(places.__getitem__, kernels)))
        return ScaledKernels(traced, _totals(steps))
    points = (
        [chosen[0], *([chosen[len(chosen) // 2]] if len(chosen) > 2 else []), chosen[-1]]
        if len(chosen) > 1
        else chosen
    )
    numbers: dict[tuple, int] = {}
    different: list[Kernel] = []
    polynomials: list[tuple[Polynomial, ...]] = []
    order: list[int] = []
    for kernels in zip(*(steps[size] for size in points), strict=True):
        of_each = tuple((k.flops, k.bytes, k.launches, *k.shape) for k in kernels)
        key = (kernels[0][:2], kernels[0].engine, of_each)
        if key not in numbers:
            numbers[key] = len(different)
            different.append(kernels[0])
            columns = zip(*of_each, strict=True)
            polynomials.append(
                tuple(fit_polynomial(list(zip(points, column, strict=True))) for column in columns)
            )
        order.append(numbers[key])
    exact = len(chosen) == len(steps)
    return KernelModel(tuple(different), tuple(polynomials), tuple(order), tuple(points), exact)


def _alike(steps: Mapping[int, Sequence[Kernel]]) -> list[int]:
    """The most batch sizes whose steps ran the same kernels, ascending; of equally many those with
    the largest size.
    """
    groups: dict[tuple, list[int]] = {}
    for size, kernels in steps.items():
        groups.setdefault(
            tuple((k.op, k.kind, k.engine, len(k.shape)) for k in kernels), []
        ).append(size)
    return max(groups.values(), key=lambda sizes: (len(sizes), sizes[-1]))


def _totals(steps: Mapping[int, Sequence[Kernel]]) -> dict[str, tuple[Polynomial, Polynomial]]:
    ends = [min(steps), max(steps)]

    def total(kind: str, field: str) -> Polynomial:
        return fit_polynomial(
            [(size, sum(getattr(k, field) for k in steps[size] if k.kind == kind)) for size in ends]
        )

    kinds = {kernel.kind for size in ends for kernel in steps[size]}
    return {kind: (total(kind, "flops"), total(kind, "bytes")) for kind in kinds}
