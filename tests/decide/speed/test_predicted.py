"""Speed where nothing was run: the curve, the knee, what binds the step, and how far it may be off."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.memory.intervals import STEP_TIME, STEP_TIME_GROUPED, Evidence
from brimful.decide.speed.kernels import fit_kernels
from brimful.decide.speed.measured import TOLERANCE
from brimful.decide.speed.predicted import (
    efficiency_of,
    is_of_a_fixed_total,
    predict_speed,
    rates_of,
    samples_by_size,
    sizes_up_to,
    step_interval,
)
from brimful.measure.gpus import find_gpu
from brimful.values import Estimate, Source
from brimful_inside.simulator.roofline import DEFAULT, Kernel
from tests.decide.programs import step_kernels

EVIDENCE = Evidence(STEP_TIME, 0.0, -0.1, 0.2, 64, "2026-11-20", "one NVIDIA A100-PCIE-40GB", "a bench")


def card():
    return replace(find_gpu("a100-40gb"), name="NVIDIA A100-PCIE-40GB")


def speed(model=None, batch_size: int | None = 64, largest: int | None = 4096, samples=float, gpu=None, draws=True):
    model = model or fit_kernels({5: step_kernels(5), 12: step_kernels(12)})
    found = predict_speed(model, gpu or card(), batch_size, largest, samples, draws=draws)
    assert found is not None
    return found


def wide(batch: int, grouped: bool = False) -> list[Kernel]:
    """A network whose products fill a card from some batch size on."""
    op, groups = ("aten.convolution.default", 4) if grouped else ("aten.mm.default", 1)
    product = Kernel(op, "tf32", 2 * batch * 2048 * 2048 // groups, 4 * (2 * batch * 2048 + 2048 * 2048), 1, 0,
                     (groups, batch, 2048 // groups, 2048))  # fmt: skip
    return [product, Kernel("aten.relu.default", "memory", 0, 8 * batch * 2048)] * 10


def test_speed_rises_to_a_knee_that_is_the_smallest_size_within_the_tolerance_of_the_best():
    found = speed(fit_kernels({5: wide(5), 12: wide(12)}))
    rates = {point.batch_size: point.value.value for point in found.curve}
    assert found.best_batch_size is not None
    best = rates[found.best_batch_size]
    assert best == max(rates.values())
    assert found.knee_batch_size == min(size for size, rate in rates.items() if rate >= best * (1 - TOLERANCE))
    assert rates[1] < 0.1 * best
    assert 100 < found.knee_batch_size < 4096
    assert found.knee_interval is not None
    assert found.knee_interval[0] <= found.knee_batch_size <= found.knee_interval[1]
    assert found.share_of_best == pytest.approx(rates[64] / best)


def test_a_step_of_small_kernels_is_bound_by_launches_and_a_large_one_is_not():
    model = fit_kernels({5: wide(5), 12: wide(12)})
    small, large = speed(model, 1), speed(model, 4096)
    assert max(small.bound_by, key=lambda name: small.bound_by[name]) in ("launches", "bandwidth")
    assert small.bound_by["launches"] > 5 * large.bound_by["launches"]
    assert large.bound_by["compute"] > 0.5
    for found in (small, large):
        assert sum(found.bound_by.values()) == pytest.approx(1.0)


def test_everything_is_labelled_predicted_and_lies_within_its_interval():
    found = speed()
    assert found.samples_per_s is not None
    for value in (found.step_s, found.samples_per_s, *(point.value for point in found.curve)):
        assert value.source is Source.PREDICTED
        assert value.low < value.value < value.high
        assert value.note


def test_a_launch_bound_step_is_known_less_well_for_the_host_is_not_known():
    model = fit_kernels({5: wide(5), 12: wide(12)})
    small, large = speed(model, 1).step_s, speed(model, 4096).step_s
    assert small.high / small.low > 1.5 * large.high / large.low


def test_a_card_of_which_only_the_memory_is_known_has_no_clock():
    gpu = replace(card(), bandwidth_bytes_per_s=Estimate(936e9, Source.ASSUMED))
    assert rates_of(gpu) is None
    assert predict_speed(fit_kernels({5: step_kernels(5), 12: step_kernels(12)}), gpu, 64, 100, float) is None


def test_a_command_as_it_stands_has_a_step_and_no_curve():
    found = speed(fit_kernels({0: step_kernels(8)}), None, None, samples_by_size({0: 8}))
    assert found.curve == ()
    assert found.knee_batch_size is None
    assert found.samples_per_s is not None
    assert found.samples_per_s.value == pytest.approx(8 / found.step_s.value)


def test_a_size_that_does_not_fit_is_answered_and_not_drawn():
    found = speed(batch_size=5000, largest=100)
    assert found.batch_size == 5000
    assert found.curve[-1].batch_size == 100
    assert speed(largest=None).curve == ()


def test_the_curve_ends_with_the_largest_and_holds_what_was_asked():
    found = speed(batch_size=77, largest=1000)
    sizes = [point.batch_size for point in found.curve]
    assert sizes == sorted(sizes)
    assert {1, 64, 77, 96, 512, 1000} <= set(sizes)


@given(st.integers(1, 100_000))
def test_sizes_are_within_the_largest_and_no_further_apart_than_half(largest):
    sizes = sizes_up_to(largest)
    assert sizes[0] == 1
    assert sizes[-1] == largest
    assert all(b <= math.ceil(1.5 * a) + 1 for a, b in pairwise(sizes))


def test_the_operations_that_take_longest_come_first_with_their_share():
    found = speed(fit_kernels({5: wide(5), 12: wide(12)}), 2048)
    assert [one.op for one in found.kernels] == ["mm", "relu"]
    assert found.kernels[0].bound_by == "compute"
    assert 0.9 < sum(one.share for one in found.kernels) <= 1.0 + 1e-9


def test_samples_in_a_step_follow_what_traces_showed():
    accumulated = samples_by_size({5: 20, 12: 48})
    assert accumulated is not None
    assert accumulated(100) == 400
    one = samples_by_size({5: 20, 12: None})
    assert one is not None
    assert one(10) == 40
    assert samples_by_size({5: None}) is None
    assert samples_by_size({0: 16})(0) == 16  # type: ignore[misc]


def test_batches_that_are_summed_to_a_fixed_total_are_known_by_their_number():
    assert is_of_a_fixed_total({5: 255, 12: 252, 85: 255}, {5: 51.0, 12: 21.0, 85: 3.0})  # 256 // size
    assert is_of_a_fixed_total({5: 260, 12: 264}, {5: 52.0, 12: 22.0})  # the next above
    assert is_of_a_fixed_total({8: 512, 512: 512}, {8: 64.0, 512: 1.0})


@pytest.mark.parametrize(
    ("seen", "batches"),
    [
        ({5: 20, 12: 48}, {5: 4.0, 12: 4.0}),  # as many at every size
        ({5: 64, 12: 64}, {5: 1.0, 12: 1.0}),  # the flag does not reach the loader
        ({5: 20, 4096: 4096}, {5: 4.0, 4096: 1.0}),  # the data set ends
        ({5: 255}, {5: 51.0}),
        ({5: 255, 12: None}, {5: 51.0, 12: 21.0}),
    ],
)
def test_what_is_no_fixed_total_is_not_taken_for_one(seen, batches):
    assert not is_of_a_fixed_total(seen, batches)


def test_where_nothing_is_known_of_other_sizes_nothing_is_drawn():
    assert speed(fit_kernels({5: wide(5), 12: wide(12)}), 12).curve
    undrawn = speed(fit_kernels({5: wide(5), 12: wide(12)}), 12, draws=False)
    assert undrawn.samples_per_s is not None
    assert (undrawn.curve, undrawn.knee_batch_size, undrawn.share_of_best) == ((), None, None)


def test_samples_in_a_step_are_capped_where_a_larger_trace_showed_it():
    capped = samples_by_size({5: 20, 12: 48, 5000: 1024})  # four batches a step, none larger than 256
    assert capped is not None
    assert [capped(size) for size in (1, 12, 64, 256, 1024, 5000, 9000)] == [4, 48, 256, 1024, 1024, 1024, 1024]


def test_evidence_of_the_card_itself_is_taken_as_it_is_and_widened_for_another():
    own = step_interval(card(), STEP_TIME, (EVIDENCE,))
    assert (own.low, own.high) == (-0.1, 0.2)
    other = step_interval(find_gpu("rtx3080-20gb"), STEP_TIME, (EVIDENCE,))
    assert other.low < own.low
    assert other.high > own.high
    assert "another card" in other.basis
    nothing = step_interval(card(), STEP_TIME, ())
    assert nothing.low == -0.5
    assert "assumed" in nothing.basis


def test_grouped_convolutions_have_evidence_of_their_own():
    def basis(grouped: bool) -> str | None:
        return speed(fit_kernels({size: wide(size, grouped) for size in (5, 12)}), 256).step_s.note

    ordinary, grouped = step_interval(card(), STEP_TIME), step_interval(card(), STEP_TIME_GROUPED)
    assert basis(False) == ordinary.basis
    assert basis(True) == grouped.basis
    assert (grouped.high - grouped.low) > (ordinary.high - ordinary.low), "the committed evidence"


REACHED = {
    "bandwidth_bytes_per_s": 1300e9,
    "fp32_flops": 18e12,
    "bf16_flops": 250e12,
    "kernel_s": 2e-6,
    "dispatch_s": 10e-6,
    "link_bytes_per_s": 9e9,
}


def test_rates_that_a_card_reached_take_the_place_of_the_datasheets_and_of_its_shares():
    gpu = replace(card(), reached=REACHED)
    rates, efficiency = rates_of(gpu), efficiency_of(gpu)
    assert rates is not None
    assert (rates.bandwidth_bytes_per_s, rates.fp32, rates.bf16) == (1300e9, 18e12, 250e12)
    assert rates.tf32 == card().tf32_flops.value, "not measured"
    assert efficiency.bandwidth == efficiency.cuda_cores == 1.0
    assert (efficiency.kernel_s, efficiency.link_bytes_per_s) == (2e-6, 9e9)
    assert efficiency.script_s == 2 * DEFAULT.script_s, "a host that dispatches half as fast"
    assert efficiency_of(card()) == DEFAULT


def test_a_card_that_the_catalogue_lacks_has_a_clock_once_its_rates_were_measured():
    assumed = {
        name: Estimate(1e12, Source.ASSUMED) for name in ("bandwidth_bytes_per_s", "fp32_flops", "tf32_flops", "fp16_flops")
    }
    gpu = replace(card(), reached=REACHED, **assumed)
    rates = rates_of(gpu)
    assert rates is not None
    assert rates.tf32 is None, "an assumed rate is none"
    assert rates_of(replace(gpu, reached={})) is None
    assert "measured on this card" in step_interval(gpu, STEP_TIME, (EVIDENCE,)).basis
    found = speed(gpu=gpu)
    assert found.step_s.value > 0
