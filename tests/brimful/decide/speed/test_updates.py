"""What an optimizer's step takes after a change to it."""

from brimful.decide.speed import updates
from brimful.values import Estimate, Source
from brimful_inside.simulator.roofline import BY_AUTOGRAD, BY_OPTIMIZER, MEMORY, Kernel

FORWARD = Kernel("aten.mm", "fp32", 10, 10)
BACKWARD = FORWARD._replace(engine=BY_AUTOGRAD)
STEP = [
    Kernel(f"aten._foreach_{name}", MEMORY, 0, 800, 3, BY_OPTIMIZER)
    for name in ("mul_", "sqrt", "addcdiv_")
]
KERNELS = [FORWARD, BACKWARD, *STEP]


def test_another_optimizer_moves_its_own_bytes_in_as_many_operations_as_it_makes():
    for operations in (1, 5):
        after = updates.updated_by(1000, operations)(KERNELS)
        assert after[:2] == [FORWARD, BACKWARD] and len(after) == 2 + operations
        assert sum(kernel.bytes for kernel in after[2:]) == 1000
    again = updates.updated_by(500, 1)(updates.updated_by(1000, 5)(KERNELS))
    assert again == updates.updated_by(500, 1)(KERNELS), "the last change tells"


def test_a_micro_batch_adds_its_gradients_and_makes_no_update():
    after = updates.adding_gradients(800, 2)(KERNELS)
    assert after[:2] == [FORWARD, BACKWARD] and {kernel.engine for kernel in after[2:]} == {
        BY_AUTOGRAD
    }
    assert sum(kernel.bytes for kernel in after[2:]) == 3 * 800
    assert updates.adding_gradients(0, 0)(KERNELS) == [FORWARD, BACKWARD]


def test_each_of_several_cards_updates_its_part_and_computes_all():
    after = updates.shared_by(4)(KERNELS)
    assert after[:2] == [FORWARD, BACKWARD] and [kernel.bytes for kernel in after[2:]] == [
        200,
        200,
        200,
    ]


def test_a_step_of_micro_batches_has_one_update():
    step, micro = (
        Estimate(value, Source.PREDICTED, low, high)
        for value, low, high in ((5.0, 4.0, 8.0), (3.0, 2.0, 6.0))
    )
    whole = updates.micro_batches_s(step, micro, 3)
    assert (whole.value, whole.low, whole.high) == (11.0, 8.0, 20.0)
    assert updates.micro_batches_s(step, Estimate(3.0, Source.PREDICTED), 3).low is None
