"""The context of a program on a card: cuDNN where convolutions run, NCCL where ranks communicate, and its interval."""

from dataclasses import replace

from brimful.decide.memory.cuda_context import NCCL_OF_MORE, NCCL_OF_TWO, context_of, slack_of
from brimful.decide.memory.fit import Card
from brimful.decide.memory.intervals import RelativeInterval
from brimful.measure.gpus import find_gpu
from brimful.values import Estimate, Source
from brimful_inside.simulator.replay import Peaks, Replayed


def test_a_convolution_net_brings_cudnn_into_the_context_of_the_card_where_that_was_measured():
    gpu = find_gpu("a100-40gb")
    dense, convolution = context_of(gpu, uses_cudnn=False), context_of(gpu, uses_cudnn=True)
    assert convolution.value - dense.value == gpu.cudnn_bytes.value
    assert convolution.source is Source.MEASURED
    assert slack_of(dense) == slack_of(convolution) == (0, 0)


def test_an_assumed_context_widens_the_interval_by_what_is_not_known_of_it():
    below, above = slack_of(context_of(find_gpu("t4"), uses_cudnn=False))
    assert below > 0 and above > 0
    known = Card(10**10, 10**9, RelativeInterval(-0.01, 0.01, "a bench", Source.MEASURED))
    unknown = Card(10**10, 10**9, known.interval, context_slack_bytes=(below, above))
    played = Replayed({}, Peaks(0, 10**9))
    assert unknown.upper(played) == known.upper(played) + above
    assert "assumed" in unknown.estimate(played.peak).interval_basis
    assert "assumed" not in known.estimate(played.peak).interval_basis


def test_each_communicator_adds_buffers_of_its_own_and_widens_the_context():
    gpu = replace(find_gpu("a100-40gb"), context_bytes=Estimate(1000, Source.MEASURED))
    assert context_of(gpu, False, []) == context_of(gpu, False, [1]) == gpu.context_bytes, "a card alone has no peer"
    assert context_of(gpu, False, [8, 2]).value == 1000 + NCCL_OF_MORE + NCCL_OF_TWO
    pair = context_of(gpu, False, [2])
    assert pair.value == 1000 + NCCL_OF_TWO and pair.source is Source.ASSUMED
    assert slack_of(pair) == (NCCL_OF_TWO * 0.75, NCCL_OF_TWO * 0.5)
