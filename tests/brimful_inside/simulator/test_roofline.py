"""The roofline: what binds a kernel, waves of tiles, and a host that dispatches."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful_inside.simulator.roofline import (
    BANDWIDTH,
    BOUNDS,
    COMPUTE,
    DEFAULT,
    HOST,
    LAUNCHES,
    LINKS,
    SLEEP,
    TRANSFER,
    Kernel,
    Rates,
    kernel_time,
    over_links,
    product_time,
    step_time,
)  # isort: skip

A100 = Rates(1555e9, 19.5e12, 156e12, 312e12, 312e12, 108, (8, 0))
T4 = Rates(320e9, 4.3e12, None, 34.3e12, None, 40, (7, 5))
RTX3090 = Rates(936e9, 35.6e12, 35.6e12, 71e12, 71e12, 82, (8, 6))


def elementwise(nbytes: int, launches: int = 1, engine: int = 0) -> Kernel:
    return Kernel("aten.relu.default", "memory", 0, nbytes, launches, engine)


def product(m: int, n: int, k: int, kind="bf16", batch=1, op="aten.mm.default") -> Kernel:
    nbytes = (2 if kind in ("bf16", "fp16") else 4) * batch * (m * k + k * n + m * n)
    return Kernel(op, kind, 2 * batch * m * n * k, nbytes, shape=(batch, m, n, k))


def exchange(kind: str, nbytes: int) -> Kernel:
    return Kernel("c10d::allreduce_", kind, 0, nbytes)


def step_of(kernels: list[Kernel], rates: Rates = A100):
    return step_time(kernels, [kernel_time(kernel, rates) for kernel in kernels])


def test_a_large_product_is_bound_by_arithmetic_and_reaches_the_fitted_share_of_the_peak():
    timed = kernel_time(product(8192, 8192, 8192), A100)
    share = 2 * 8192**3 / timed.seconds / A100.peak("bf16")
    assert timed.bound == COMPUTE and 0.85 * DEFAULT.tensor_cores < share <= DEFAULT.tensor_cores


@pytest.mark.parametrize(("rates", "forward", "backward"), [(A100, 0.60, 0.60), (T4, 0.30, 0.25)])
def test_fused_attention_reaches_less_of_the_peak_before_ampere_and_least_backward(
    rates: Rates, forward, backward
):
    for op, share in (
        ("aten._scaled_dot_product_efficient_attention", forward),
        ("aten.any_attention_backward", backward),
    ):
        timed = kernel_time(Kernel(op, "fp16", 10**13, 1 << 20), rates)
        expected_s = pytest.approx(10**13 / (share * rates.peak("fp16")), rel=0.01)
        assert (timed.bound, timed.seconds) == (COMPUTE, expected_s)


@pytest.mark.parametrize(
    ("kernel", "bound", "seconds"),
    [
        (elementwise(1 << 30), BANDWIDTH, (1 << 30) / (1555e9 * DEFAULT.bandwidth)),
        (elementwise(64), LAUNCHES, DEFAULT.kernel_s),
        (Kernel("aten._to_copy.default", "link", 0, 60_000_000), TRANSFER, 0.01),
        (Kernel("aten._to_copy.default", "pinned", 0, 60_000_000), TRANSFER, 0.005),
    ],
    ids=["a large copy", "a small kernel", "from the host", "from pinned memory of the host"],
)
def test_what_computes_little_is_bound_by_what_it_moves_or_by_its_start(kernel, bound, seconds):
    timed = kernel_time(kernel, A100)
    assert timed.bound == bound and timed.seconds == pytest.approx(seconds, rel=0.01)


def test_one_tile_more_than_there_are_multiprocessors_takes_another_wave():
    # 108 tiles of 256 x 128, whichever way they lie, and two more
    full, over = (
        product_time((1, 128 * 54 + rows, 256 * 2, 4096), "bf16", A100) for rows in (0, 256)
    )
    assert over > 1.2 * full


@given(
    st.integers(1, 4096),
    st.integers(1, 4096),
    st.integers(1, 4096),
    st.sampled_from(["fp32", "tf32", "bf16"]),
)
def test_no_product_is_faster_than_the_peak(m, n, k, kind):
    assert math.inf > product_time((1, m, n, k), kind, A100) >= 2 * m * n * k / A100.peak(kind)


@given(st.integers(1, 2000), st.integers(1, 512), st.integers(1, 2048))
def test_twice_the_rows_never_take_less_time(m, n, k):
    assert product_time((1, 2 * m, n, k), "bf16", A100) >= product_time(
        (1, m, n, k), "bf16", A100
    ) * (1 - 1e-9)


def test_a_product_that_few_tiles_would_do_is_split_over_what_it_sums():
    narrow = product_time((1, 64, 64, 1 << 16), "bf16", A100)
    one_processor = 2 * 64 * 64 * (1 << 16) / (A100.peak("bf16") / 108 * DEFAULT.tensor_cores)
    assert narrow < one_processor / 10


def test_geforce_cards_reach_more_of_their_halved_rate():
    for rates, share in ((A100, DEFAULT.tensor_cores), (RTX3090, DEFAULT.halved)):
        seconds = product_time((1, 16384, 16384, 4096), "fp16", rates)
        assert 2 * 16384**2 * 4096 / seconds == pytest.approx(share * rates.peak("fp16"), rel=0.1)


def test_a_few_groups_are_slow_and_many_are_packed():
    few = product(100_000, 64, 576, "fp16", batch=2, op="aten.convolution.default")
    many = product(100_000, 4, 36, "fp16", batch=32, op="aten.convolution.default")
    assert kernel_time(few, RTX3090).seconds > 5 * few.flops / RTX3090.peak("fp16")
    assert kernel_time(many, RTX3090).bound == BANDWIDTH


def test_a_card_without_a_unit_or_with_few_of_them_computes_slower():
    v100 = Rates(900e9, 15.7e12, None, 125e12, None, 80, (7, 0))
    assert v100.peak("bf16") == v100.peak("tf32") == 15.7e12
    assert (A100.peak("fp64"), RTX3090.peak("fp64")) == (A100.fp32 / 2, RTX3090.fp32 / 64)


@pytest.mark.parametrize(
    ("nbytes", "bound", "rel"), [(1000, LAUNCHES, 0.05), (1 << 28, BANDWIDTH, 0.01)]
)
def test_small_kernels_wait_for_the_host_and_large_ones_do_not(nbytes, bound, rel):
    step = step_of([elementwise(nbytes)] * 200)
    expected_s = 200 * DEFAULT.script_s if bound == LAUNCHES else step.device_s
    assert step.seconds == pytest.approx(expected_s, rel=rel)
    assert step.shares[bound] > 0.95 * step.seconds


def test_a_script_that_waits_for_the_card_pays_for_what_it_did_not_dispatch_meanwhile():
    work = [elementwise(100)] * 100 + [elementwise(1 << 30)] * 5
    waits = [*work, Kernel("aten._local_scalar_dense.default", "sync", 0, 0, 0)]
    assert step_of(waits).seconds > step_of(work).seconds * 1.3


def test_the_hosts_own_arithmetic_starts_when_the_card_is_done_and_the_card_waits_for_it():
    card, host = elementwise(1 << 30), Kernel("an update", "host", 0, 4 * 10**9)
    step = step_of([card, host, card])
    assert step.device_s == pytest.approx(2 * kernel_time(card, A100).seconds)
    assert step.seconds == pytest.approx(0.1 + step.device_s, rel=0.01)
    assert step.shares[HOST] == pytest.approx(0.1)
    assert kernel_time(host, A100, DEFAULT.with_host(2.0)).seconds == pytest.approx(0.2)


def test_exchange_takes_its_time_and_a_collective_only_what_later_kernels_do_not_hide():
    work = [elementwise(1 << 30)] * 4
    alone = step_of(work)
    first, last = (
        step_of(made)
        for made in (
            [exchange("collective", 10_000_000), *work],
            [*work, exchange("peer", 10_000_000)],
        )
    )
    assert (
        first.seconds == pytest.approx(alone.seconds, rel=0.02)
        and first.shares[LINKS] == 0.0
        and first.links_s > 8e-4
    )
    sent_s = 10_000_000 / DEFAULT.peer_bytes_per_s
    assert last.seconds == pytest.approx(alone.seconds + sent_s, rel=0.02) and last.shares[
        LINKS
    ] == pytest.approx(sent_s)
    longer = step_of([exchange("collective", 1 << 31), *work])
    assert longer.seconds == pytest.approx(longer.links_s, rel=0.01), (
        "the optimizer waits for the rest"
    )
    assert alone.links_s == 0.0


@pytest.mark.parametrize(
    ("in_each", "rate"),
    [((), "peer"), ((1,), "network"), ((2,), "two networks"), ((64,), "peer")],
)
def test_an_exchange_between_machines_goes_by_the_networks_of_all_cards_that_take_part(
    in_each, rate
):
    efficiency = DEFAULT._replace(peer_bytes_per_s=300e9, network_bytes_per_s=25e9)
    kernel = exchange("collective", 10_000_000)._replace(shape=in_each)
    bytes_per_s = {"peer": 300e9, "network": 25e9, "two networks": 50e9}[rate]
    timed = kernel_time(kernel, A100, efficiency)
    assert timed.seconds - timed.start_s == pytest.approx(10_000_000 / bytes_per_s)


@pytest.mark.parametrize(
    ("name", "ranks", "sent"),
    [
        ("allreduce_", 4, 1500),
        ("all_gather_into_tensor", 4, 750),
        ("_reduce_scatter_base_", 2, 500),
        ("alltoall_base_", 4, 750),
        ("broadcast_", 4, 1000),
        ("allreduce_", 1, 0),
        ("barrier", 4, 0),
    ],
)
def test_rings_send_each_part_as_often_as_nccl_counts_it(name, ranks, sent):
    assert over_links(name, 1000, ranks) == sent


@given(
    st.lists(
        st.one_of(
            st.builds(
                elementwise, st.integers(0, 1 << 28), st.integers(1, 3), st.sampled_from([0, 1])
            ),
            st.builds(product, st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 3000)),
            st.just(Kernel("s", "sync", 0, 0, 0)),
            st.builds(exchange, st.sampled_from(["peer", "collective"]), st.integers(0, 1 << 28)),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_shares_add_up_to_the_step_and_a_slower_host_never_makes_it_faster(kernels):
    times = [kernel_time(kernel, A100) for kernel in kernels]
    step = step_time(kernels, times)
    assert set(step.shares) == set(BOUNDS)
    assert sum(step.shares.values()) == pytest.approx(step.seconds, rel=1e-6, abs=1e-12)
    assert step.seconds >= step.device_s * (1 - 1e-9)
    assert step_time(kernels, times, DEFAULT.with_host(2.0)).seconds >= step.seconds * (1 - 1e-9)


def test_a_sleep_counts_the_cycles_of_the_datasheets_clock():
    sleep = Kernel("torch.cuda._sleep", SLEEP, 10**9, 0, 0)
    assert kernel_time(sleep, A100).seconds == pytest.approx(1 / 1.41, rel=0.001)
    of_128_cores = A100._replace(capability=(9, 0), multiprocessors=132, fp32=67e12)
    assert kernel_time(sleep, of_128_cores).seconds == pytest.approx(1 / 1.98, rel=0.01)
