"""Speed where nothing was run: the curve, the knee, what binds the step, and how far it
may be off.
"""

from dataclasses import replace

import pytest

from brimful.decide.memory.intervals import STEP_TIME, STEP_TIME_GROUPED, Evidence
from brimful.decide.speed import predicted
from brimful.decide.speed.kernels import fit_kernels
from brimful.decide.speed.measured import TOLERANCE
from brimful.decide.speed.predicted import (
    HOSTS,
    efficiency_of,
    is_of_a_fixed_total,
    predict_speed,
    rates_of,
    samples_by_size,
    seconds_outside,
    step_interval,
)
from brimful.measure.gpus import find_gpu, to_card
from brimful.values import Estimate, Source
from brimful_inside.simulator.roofline import DEFAULT, Kernel
from brimful_inside.simulator.trace import Outside
from tests.brimful.decide.programs import step_kernels


def card():
    return replace(find_gpu("a100-40gb"), name="NVIDIA A100-PCIE-40GB")


def wide(batch: int, grouped: bool = False) -> list[Kernel]:
    """A network whose products fill a card from some batch size on."""
    op, groups = ("aten.convolution.default", 4) if grouped else ("aten.mm.default", 1)
    product = Kernel(
        op,
        "tf32",
        2 * batch * 2048 * 2048 // groups,
        4 * (2 * batch * 2048 + 2048 * 2048),
        1,
        0,
        (groups, batch, 2048 // groups, 2048),
    )
    return [product, Kernel("aten.relu.default", "memory", 0, 8 * batch * 2048)] * 10


SMALL, WIDE = (fit_kernels({5: made(5), 12: made(12)}) for made in (step_kernels, wide))


def speed(
    model=SMALL,
    batch_size: int | None = 64,
    largest: int | None = 4096,
    samples=float,
    gpu=None,
    draws=True,
):
    return predict_speed(model, gpu or card(), batch_size, largest, samples, draws=draws)


def test_speed_rises_to_a_knee_that_is_the_smallest_size_within_the_tolerance_of_the_best():
    predicted = speed(WIDE)
    rates = {point.batch_size: point.value.value for point in predicted.curve}
    best = max(rates.values())
    assert rates[predicted.best_batch_size] == best
    assert predicted.knee_batch_size == min(
        size for size, rate in rates.items() if rate >= best * (1 - TOLERANCE)
    )
    assert rates[1] < 0.1 * best and 100 < predicted.knee_batch_size < 4096
    assert predicted.knee_interval[0] <= predicted.knee_batch_size <= predicted.knee_interval[1]


def test_a_step_of_small_kernels_is_bound_by_launches_and_a_large_one_is_not():
    small, large = speed(WIDE, 1), speed(WIDE, 4096)
    assert max(small.bound_by, key=lambda name: small.bound_by[name]) in ("launches", "bandwidth")
    assert small.bound_by["launches"] > 5 * large.bound_by["launches"]
    assert large.bound_by["compute"] > 0.5
    assert [sum(predicted.bound_by.values()) for predicted in (small, large)] == pytest.approx(
        [1.0, 1.0]
    )
    assert small.step_s.high / small.step_s.low > 1.5 * large.step_s.high / large.step_s.low, (
        "the host is not known"
    )


def test_everything_is_labelled_predicted_and_lies_within_its_interval():
    predicted = speed()
    for value in (
        predicted.step_s,
        predicted.samples_per_s,
        *(point.value for point in predicted.curve),
    ):
        assert value.source is Source.PREDICTED
        assert value.low < value.value < value.high
        assert value.note


def exchanging(kind: str, nbytes: int):
    return fit_kernels(
        {size: [*wide(size), Kernel("c10d::allreduce_", kind, 0, nbytes)] for size in (5, 12)}
    )


def test_exchange_between_cards_is_in_the_step_by_the_link_of_the_card_with_an_interval():
    plain, nvlink = speed(WIDE), speed(exchanging("peer", 10**9))
    by_pcie = speed(
        exchanging("peer", 10**9), gpu=replace(find_gpu("a100-80gb-pcie"), name=card().name)
    )
    assert plain.exchange is None and nvlink.exchange is not None and by_pcie.exchange is not None
    assert nvlink.exchange.note == "NVLink" and by_pcie.exchange.note == "PCIe 4.0 x16"
    assert by_pcie.exchange.value == pytest.approx(nvlink.exchange.value * 300 / 31.5, rel=0.01)
    assert by_pcie.step_s.value == pytest.approx(
        plain.step_s.value + by_pcie.exchange.value, rel=0.02
    )
    for answer in (nvlink, by_pcie):
        assert answer.exposed.value == pytest.approx(answer.exchange.value, rel=0.01)
        assert (
            answer.exchange.source is Source.PREDICTED
            and answer.exchange.low < answer.exchange.value < answer.exchange.high
        )
    assert max(by_pcie.bound_by, key=lambda name: by_pcie.bound_by[name]) == "links"


def test_a_collective_is_hidden_by_the_work_beside_it_but_for_the_upper_end_of_the_interval():
    model = fit_kernels(
        {
            size: [Kernel("c10d::allreduce_", "collective", 0, 10**8), *wide(size)]
            for size in (5, 12)
        }
    )
    plain, hidden = speed(WIDE, 4096), speed(model, 4096)
    assert hidden.step_s.value == pytest.approx(plain.step_s.value, rel=0.02)
    assert hidden.exchange.value < plain.step_s.value
    assert plain.exposed is None and hidden.exposed.value == 0.0
    assert hidden.exposed.high == pytest.approx(hidden.exchange.high, rel=0.01)
    assert hidden.step_s.high > plain.step_s.high + 0.9 * hidden.exchange.high


def test_work_outside_of_the_training_takes_the_time_of_its_kernels():
    for kernels in (wide(4096), step_kernels(5)):  # bound by the card, and by the host
        counted = tuple((1, kernel) for kernel in kernels)
        whole = seconds_outside(Outside("between", 1, counted), card())
        step = speed(fit_kernels({0: kernels}), None, None).step_s
        assert whole is not None and (whole.value, whole.source) == (
            pytest.approx(step.value, rel=0.02),
            Source.PREDICTED,
        )
        assert whole.low < whole.value < whole.high
        thrice = seconds_outside(
            Outside("between", 1, tuple((3, kernel) for kernel in kernels)), card()
        )
        each = seconds_outside(Outside("eval", 512, 3 * counted), card())
        assert thrice.value == pytest.approx(3 * whole.value) and each.value == pytest.approx(
            thrice.value / 512
        )
    assert seconds_outside(Outside("between", 2, ()), card()) is None, "nothing ran"


def test_a_command_as_it_stands_has_a_step_and_no_curve():
    predicted = speed(fit_kernels({0: step_kernels(8)}), None, None, samples_by_size({0: 8}))
    assert (predicted.curve, predicted.knee_batch_size) == (
        (),
        None,
    ) and predicted.samples_per_s is not None
    assert predicted.samples_per_s.value == pytest.approx(8 / predicted.step_s.value)


def test_the_curve_ends_with_the_largest_and_holds_what_was_asked_where_it_fits():
    sizes = [point.batch_size for point in speed(batch_size=77, largest=1000).curve]
    assert sizes == sorted(sizes) and sizes[-1] == 1000 and {1, 64, 77, 96, 512} <= set(sizes)
    beyond = speed(batch_size=5000, largest=100)
    assert (beyond.batch_size, beyond.curve[-1].batch_size) == (5000, 100)
    assert speed(largest=None).curve == ()


def test_the_operations_that_take_longest_come_first_with_their_share():
    predicted = speed(WIDE, 2048)
    assert [point.op for point in predicted.kernels] == ["mm", "relu"]
    assert predicted.kernels[0].bound_by == "compute"
    assert 0.9 < sum(point.share for point in predicted.kernels) <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("seen", "samples"),
    [
        ({5: 20, 12: 48}, {100: 400}),
        ({5: 20, 12: None}, {10: 40}),
        ({0: 16}, {0: 16}),
        # Four batches a step, of `batch_size // 4`, which is much less than a fourth of 5.
        ({5: 4, 128: 128, 255: 252, 2048: 2048}, {64: 64, 300: 300, 1024: 1024, 5: 4}),
        ({5: 4, 128: 128, 4096: 256}, {64: 64, 512: 256}),
        # Of eight ranks each takes an eighth, and one sample at least.
        ({5: 8, 128: 128, 2000: 2000}, {64: 64, 512: 512}),
        # Four batches a step, none larger than 256.
        (
            {5: 20, 12: 48, 5000: 1024},
            {1: 4, 12: 48, 64: 256, 256: 1024, 1024: 1024, 5000: 1024, 9000: 1024},
        ),
    ],
)
def test_samples_in_a_step_follow_what_traces_showed_and_are_capped_where_a_larger_one_showed_it(
    seen, samples
):
    predicted = samples_by_size(seen)
    assert predicted is not None and {size: predicted(size) for size in samples} == samples


@pytest.mark.parametrize(
    ("seen", "batches", "fixed"),
    [
        ({5: 255, 12: 252, 85: 255}, {5: 51.0, 12: 21.0, 85: 3.0}, True),  # 256 // size
        ({5: 260, 12: 264}, {5: 52.0, 12: 22.0}, True),  # the next above
        ({8: 512, 512: 512}, {8: 64.0, 512: 1.0}, True),
        ({5: 20, 12: 48}, {5: 4.0, 12: 4.0}, False),  # as many at every size
        ({5: 64, 12: 64}, {5: 1.0, 12: 1.0}, False),  # the flag does not reach the loader
        ({5: 20, 4096: 4096}, {5: 4.0, 4096: 1.0}, False),  # the data set ends
        ({5: 255}, {5: 51.0}, False),
        ({5: 255, 12: None}, {5: 51.0, 12: 21.0}, False),
    ],
)
def test_batches_that_are_summed_to_a_fixed_total_are_known_by_their_number(seen, batches, fixed):
    assert is_of_a_fixed_total(seen, batches) is fixed


def test_where_nothing_is_known_of_other_sizes_nothing_is_drawn():
    assert speed(WIDE, 12).curve
    undrawn = speed(WIDE, 12, draws=False)
    assert undrawn.samples_per_s is not None
    assert (undrawn.curve, undrawn.knee_batch_size) == ((), None)


def test_evidence_of_the_card_itself_is_taken_as_it_is_and_widened_for_another(monkeypatch):
    evidence = Evidence(
        STEP_TIME, 0.0, -0.1, 0.2, 64, "2026-11-20", "one NVIDIA A100-PCIE-40GB", "a bench"
    )
    monkeypatch.setattr(predicted, "committed_evidence", lambda: (evidence,))
    known = step_interval(card())
    assert (known.low, known.high) == (-0.1, 0.2)
    other = step_interval(find_gpu("rtx3080-20gb"))
    assert other.low < known.low and other.high > known.high and "another GPU" in other.basis


def test_grouped_convolutions_have_evidence_of_their_own():
    shown = [
        speed(fit_kernels({size: wide(size, grouped) for size in (5, 12)}), 256).step_s.note
        for grouped in (False, True)
    ]
    ordinary, grouped = step_interval(card(), STEP_TIME), step_interval(card(), STEP_TIME_GROUPED)
    assert shown == [ordinary.basis, grouped.basis]
    assert (grouped.high - grouped.low) > (ordinary.high - ordinary.low), "the committed evidence"


REACHED = {
    "bandwidth_bytes_per_s": 1300e9,
    "fp32_flops": 18e12,
    "bf16_flops": 250e12,
    "kernel_s": 2e-6,
    "dispatch_s": 2 * DEFAULT.plain_s,
    "link_bytes_per_s": 9e9,
}


def test_rates_that_a_card_reached_take_the_place_of_the_datasheets_and_of_its_shares():
    gpu = replace(card(), reached=REACHED)
    rates, efficiency = rates_of(gpu), efficiency_of(gpu)
    assert (rates.bandwidth_bytes_per_s, rates.fp32, rates.bf16) == (1300e9, 18e12, 250e12)
    assert rates.tf32 == card().tf32_flops.value, "not measured"
    assert efficiency.bandwidth == efficiency.cuda_cores == 1.0
    assert (efficiency.kernel_s, efficiency.link_bytes_per_s) == (2e-6, 9e9)
    assert efficiency.script_s == 2 * DEFAULT.script_s, "a host that dispatches half as fast"
    assert efficiency_of(card()) == DEFAULT._replace(peer_bytes_per_s=300e9)


def test_the_hosts_that_are_assumed_reach_over_what_was_measured_on_two_days():
    fast, slow = HOSTS[0] * DEFAULT.plain_s, HOSTS[-1] * DEFAULT.plain_s
    assert fast < 7.63e-6 < DEFAULT.plain_s < 9.75e-6 < slow


def test_a_card_that_the_catalogue_lacks_has_a_clock_once_its_rates_were_measured():
    names = ("bandwidth_bytes_per_s", "fp32_flops", "tf32_flops", "fp16_flops")
    gpu = replace(card(), reached=REACHED, **dict.fromkeys(names, Estimate(1e12, Source.ASSUMED)))
    rates = rates_of(gpu)
    assert rates is not None and rates.tf32 is None, "an assumed rate is none"
    assert rates_of(replace(gpu, reached={})) is None
    assert "measured on this card" in step_interval(gpu).basis
    assert speed(gpu=gpu).step_s.value > 0


def test_a_card_slowed_by_its_power_limit_computes_at_its_clock_and_reads_memory_as_before():
    t4 = find_gpu("t4")
    held = t4.sustained_clock.value
    assert 0.4 < held < 0.7 and t4.sustained_clock.source is Source.MEASURED
    slowed, rated = rates_of(t4), rates_of(replace(t4, sustained_clock=None))
    assert (slowed.fp16, slowed.fp32) == (held * rated.fp16, held * rated.fp32)
    assert slowed.bandwidth_bytes_per_s == rated.bandwidth_bytes_per_s
    assert to_card(t4).flops == {"fp32": slowed.fp32, "fp16": slowed.fp16}, (
        "a script's own clock runs by the same rates"
    )
