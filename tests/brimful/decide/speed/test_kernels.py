"""The kernels of a step at any batch size, from those of two or three traces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.speed.kernels import KernelModel, ScaledKernels, fit_kernels
from brimful_inside.simulator.roofline import Kernel
from tests.brimful.decide.programs import step_kernels


def kernels_at(model: KernelModel | ScaledKernels | None, batch: int) -> list[Kernel]:
    kernels = model.at(batch)
    return [kernels.kernels[index] for index in kernels.order]


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 5000))
def test_two_traces_give_every_kernel_at_every_batch_size(first, more, asked):
    model = fit_kernels({first: step_kernels(first), first + more: step_kernels(first + more)})
    assert model is not None and model.exact
    assert kernels_at(model, asked) == step_kernels(asked)


def test_kernels_that_are_alike_are_kept_once():
    same = [Kernel("aten.relu.default", "memory", 0, 800)] * 50
    model = fit_kernels({5: same, 12: [k._replace(bytes=1920) for k in same]})
    assert isinstance(model, KernelModel) and (len(model.kernels), len(model.order)) == (1, 50)


def test_a_third_trace_gives_what_grows_with_the_square():
    def attention(batch: int) -> list[Kernel]:
        return [
            Kernel(
                "aten.bmm.default",
                "fp32",
                8 * batch * batch,
                4 * batch * batch,
                1,
                0,
                (1, batch, batch, 4),
            )
        ]

    model = fit_kernels({size: attention(size) for size in (4, 11, 40)})
    assert kernels_at(model, 100) == attention(100)


def test_one_trace_says_nothing_of_other_sizes():
    model = fit_kernels({8: step_kernels(8)})
    assert model is not None and model.fitted_at == (8,)
    assert kernels_at(model, 8) == kernels_at(model, 80) == step_kernels(8)


def test_no_step_no_model():
    assert fit_kernels({}) is fit_kernels({4: [], 8: []}) is None


def test_of_several_traces_those_that_agree_are_taken_unless_the_others_are_known_to_differ():
    traces = {4: step_kernels(4, layers=2), 8: step_kernels(8), 15: step_kernels(15)}
    model = fit_kernels(traces)
    assert isinstance(model, KernelModel) and model.fitted_at == (8, 15)
    assert not model.exact, "one trace ran other kernels"
    assert kernels_at(model, 100) == step_kernels(100)
    scaled = fit_kernels(traces, alike=False)
    assert isinstance(scaled, ScaledKernels) and kernels_at(scaled, 4) == traces[4], (
        "a size that was traced is itself"
    )


def test_where_no_two_agree_the_nearest_is_grown_as_its_kind_grows():
    model = fit_kernels({5: step_kernels(5), 12: step_kernels(12, extra=True)})
    assert isinstance(model, ScaledKernels) and not model.exact
    assert kernels_at(model, 12) == step_kernels(12, extra=True), "a size that was traced is itself"
    large = kernels_at(model, 1200)
    assert [k.op for k in large] == [k.op for k in step_kernels(12, extra=True)]
    products = sum(k.flops for k in large if k.shape)
    assert products == pytest.approx(sum(k.flops for k in step_kernels(1200) if k.shape), rel=0.01)
    assert large[0].shape[1] == pytest.approx(1200, rel=0.01)
    assert sum(k.launches for k in large) == sum(k.launches for k in step_kernels(12, extra=True))
