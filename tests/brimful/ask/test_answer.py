"""A budget below the card's memory: what fits is what PyTorch gets through with if it is limited to
it.
"""

import pytest

from brimful import predict
from brimful.decide.memory.intervals import TRIED
from brimful.units import GIB
from brimful.values import Verdict
from tests.brimful.verbs.world import COMMAND, World, reporting, work


def warned(prediction) -> bool:
    return "limit-pytorch" in {warning.code for warning in prediction.warnings}


def test_no_size_is_said_to_take_more_than_the_budget_that_it_fits():
    prediction = work(World(), predict, COMMAND, gpu="h200", budget="4GiB").prediction
    assert prediction.verdict is Verdict.FITS
    assert prediction.peak.device_interval_bytes[1] <= 4 * GIB


class KeepsMore(World):
    """What was freed before is of no use to what comes, so that PyTorch's cache grows."""

    def rows(self, size):
        from brimful_inside.simulator.trace import Free, Malloc

        first, second = size * (40 << 20), size * (41 << 20)
        return [Malloc(11, first, "a"), Free(11), Malloc(12, second, "b"), Free(12)]


@pytest.mark.parametrize(("gpu", "says"), [("h200", True), (None, False)])
def test_where_pytorch_takes_more_of_the_whole_card_the_first_lines_say_how_it_is_limited(
    gpu, says
):
    card = {"gpu": gpu, "budget": "4GiB"} if gpu else {"gpu_memory": "4GiB"}
    prediction = work(KeepsMore(), predict, COMMAND, **card).prediction
    assert prediction.verdict is Verdict.FITS and warned(prediction) == says


def test_what_cudnns_search_may_take_for_a_moment_widens_the_interval_and_no_verdict():
    plain, tried = (
        work(reporting(approximations=names), predict, COMMAND, gpu="h200").prediction
        for names in ([], [TRIED])
    )
    assert tried.largest_batch_size == plain.largest_batch_size
    assert [part.name for part in tried.peak.interval_parts].count(TRIED) == 1
    assert TRIED not in {part.name for part in plain.peak.interval_parts}
    assert tried.peak.device_interval_bytes[1] >= plain.peak.device_interval_bytes[1]
