"""A predicted step as a Chrome trace: valid events, as long as the step."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.speed.kernels import fit_kernels
from brimful.decide.speed.predicted import predict_speed
from brimful.decide.speed.step_trace import CARD, EXCHANGE, HOST, KERNELS, STEP, step_trace
from brimful.measure.gpus import find_gpu
from brimful.values import Estimate, Source
from brimful_inside.simulator.roofline import BY_AUTOGRAD, COLLECTIVE, SYNC, Kernel
from tests.brimful.decide.programs import step_kernels

PRODUCT = Kernel("aten.mm.default", "fp32", 10**12, 10**9, shape=(1, 8192, 8192, 8192))
SMALL = Kernel("aten.add.Tensor", "memory", 0, 1000, 3, BY_AUTOGRAD)
WAIT = Kernel("synchronize", SYNC, 0, 0, 0)
REDUCE = Kernel("c10d.allreduce_", COLLECTIVE, 0, 10**9)


def made(kernels, name="a100-40gb"):
    """(Seconds, all events, those of work by (process, thread).)"""
    seconds, trace = step_trace(fit_kernels({8: kernels}), find_gpu(name), 8)
    events = json.loads(json.dumps(trace))["traceEvents"]
    work = {}
    for event in events:
        if event["ph"] == "X":
            work.setdefault((event["pid"], event["tid"]), []).append(event)
    return seconds, events, work


def ends(event):
    return event["ts"] + event["dur"]


@given(st.lists(st.sampled_from([PRODUCT, SMALL, WAIT, REDUCE]), min_size=1, max_size=30))
def test_events_are_valid_sorted_and_as_long_as_the_predicted_step(kernels):
    seconds, events, work = made(kernels)
    for event in events:
        assert event["ph"] in "XM" and {"name", "pid", "tid"} <= event.keys()
    starts = [event["ts"] for event in events if event["ph"] == "X"]
    assert starts == sorted(starts) and starts[0] == pytest.approx(0, abs=1e-6)
    (step,) = work[CARD, STEP]
    speed = predict_speed(fit_kernels({8: kernels}), find_gpu("a100-40gb"), 8, None, None)
    assert speed.step_s.value == pytest.approx(seconds)
    assert step["dur"] / 1e6 == pytest.approx(seconds, abs=2e-9)
    for stream in KERNELS, EXCHANGE:
        ran = work.get((CARD, stream), [])
        assert all(ends(a) <= b["ts"] + 2e-3 for a, b in pairwise(ran))
        assert all(e["ts"] >= step["ts"] - 2e-3 and ends(e) <= ends(step) + 2e-3 for e in ran)
    assert len(work[HOST, 3]) == len(kernels)


def test_a_card_that_waits_for_the_host_runs_each_kernel_after_its_dispatch():
    _, _, work = made([SMALL] * 20)
    for host, card in zip(work[HOST, 3], work[CARD, KERNELS], strict=True):
        assert card["ts"] >= ends(host) - 2e-3
    assert work[CARD, KERNELS][0]["args"]["dispatched by"] == "autograd"


def test_collectives_run_beside_kernels_and_the_host_waits_on_its_own_queue():
    _, _, work = made([PRODUCT, REDUCE, PRODUCT, WAIT])
    assert [e["name"] for e in work[CARD, EXCHANGE]] == ["c10d.allreduce_"]
    assert work[CARD, EXCHANGE][0]["ts"] < ends(work[CARD, KERNELS][1])
    assert "synchronize" not in {e["name"] for e in work[CARD, KERNELS]}
    assert work[HOST, 3][-1]["name"] == "wait for the card: synchronize"
    assert work[HOST, 3][-1]["dur"] > 1000, "the products are long"


def test_a_card_without_known_rates_has_no_trace():
    rate = Estimate(1e12, Source.ASSUMED)
    unknown = replace(find_gpu("a100-40gb"), bandwidth_bytes_per_s=rate, reached={})
    assert step_trace(fit_kernels({8: step_kernels(8)}), unknown, 8) is None
