from brimful.decide.nccl import OF_MORE, OF_TWO, nccl_bytes, with_nccl

from brimful.decide.memory.cuda_context import slack_of
from brimful.values import Estimate, Source

CONTEXT = Estimate(1000, Source.MEASURED)


def test_a_card_alone_talks_to_nobody():
    assert nccl_bytes([]) is None and nccl_bytes([1]) is None
    assert with_nccl(CONTEXT, []) is CONTEXT


def test_each_communicator_has_buffers_of_its_own():
    one, two = nccl_bytes([8]), nccl_bytes([8, 2])
    assert one is not None and two is not None
    assert one.value == OF_MORE and two.value == OF_MORE + OF_TWO and one.source is Source.ASSUMED


def test_what_is_not_known_of_them_widens_the_context():
    context = with_nccl(CONTEXT, [2])
    assert context.value == CONTEXT.value + OF_TWO and context.source is Source.ASSUMED
    below, above = slack_of(context)
    assert below == OF_TWO * 0.75 and above == OF_TWO * 0.5
