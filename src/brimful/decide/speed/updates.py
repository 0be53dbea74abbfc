"""What the optimizer's step takes after a change to it: other kernels in place of those that a
trace shows of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from brimful.values import Estimate
from brimful_inside.simulator.roofline import BY_AUTOGRAD, BY_OPTIMIZER, MEMORY, Kernel

#: the kernels of a step -> after a change
Reworked = Callable[[Sequence[Kernel]], Sequence[Kernel]]


def without_update(kernels: Sequence[Kernel]) -> list[Kernel]:
    return [kernel for kernel in kernels if kernel.engine != BY_OPTIMIZER]


def update_bytes(gradients: int, states: int) -> int:
    """One pass: gradients are read, parameters, as large as they are, and states read and
    written.
    """
    return 3 * gradients + 2 * states


def updated_by(nbytes: int, operations: int) -> Reworked:
    """An optimizer that moves so many bytes in so many operations of one kernel."""
    kernel = Kernel("the optimizer's step", MEMORY, 0, nbytes // operations, engine=BY_OPTIMIZER)
    return lambda kernels: [*without_update(kernels), *[kernel] * operations]


def adding_gradients(gradients: int, tensors: int) -> Reworked:
    """A micro-batch that adds its gradients to those before it, and makes no update."""
    kernel = Kernel(
        "the gradients' sum", MEMORY, 0, 3 * gradients // max(1, tensors), engine=BY_AUTOGRAD
    )
    return lambda kernels: [*without_update(kernels), *[kernel] * tensors]


def shared_by(cards: int) -> Reworked:
    """Each of the cards updates its part."""

    def rework(kernels: Sequence[Kernel]) -> list[Kernel]:
        return [
            kernel._replace(bytes=kernel.bytes // cards)
            if kernel.engine == BY_OPTIMIZER
            else kernel
            for kernel in kernels
        ]

    return rework


def micro_batches_s(step: Estimate, micro_batch: Estimate, parts: int) -> Estimate:
    """A step of so many micro-batches, of which the last one has the optimizer's step."""

    def of(name: str) -> float | None:
        last, other = getattr(step, name), getattr(micro_batch, name)
        return None if last is None or other is None else last + (parts - 1) * other

    return replace(
        step, value=step.value + (parts - 1) * micro_batch.value, low=of("low"), high=of("high")
    )
