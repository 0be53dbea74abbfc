"""Errors of the engine are known from outside by name and words: these are held against the engine's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from brimful.errors import DoesNotFit
from brimful.measure.engine_words import follows, is_final, is_for_memory
from brimful.train.distributed.ranks import (
    BROKEN,
    GIVES_UP,
    Ranks,
    Vote,
)
from brimful.train.oom_limits import SmallerFits
from brimful.train.step.oom import does_not_fit
from brimful.values import Failure
from brimful_inside.probe.hooks.exceptions import qualified_name


def failure_of(error: BaseException) -> Failure:
    return Failure("crashed", qualified_name(type(error)), str(error), "", None, "train", 4, False)


def of_another_rank(status: int) -> BaseException:
    with pytest.raises(Exception) as raised:
        Ranks.raise_for(SimpleNamespace(), [Vote(), Vote(status)])  # type: ignore[arg-type]
    return raised.value


def test_a_single_sample_that_does_not_fit_is_final_and_a_smaller_micro_batch_that_may_fit_is_not():
    assert is_final(failure_of(does_not_fit("CUDA out of memory")))
    assert not is_final(failure_of(SmallerFits("out of memory")))
    assert not is_final(failure_of(MemoryError()))


def test_both_are_for_want_of_memory_and_a_script_s_own_error_is_not():
    assert is_for_memory(failure_of(DoesNotFit("the cards do not hold it"))) and is_for_memory(failure_of(SmallerFits("")))
    assert not is_for_memory(failure_of(KeyError("lr")))


@pytest.mark.parametrize("status", [GIVES_UP, BROKEN])
def test_what_a_rank_says_of_another_one_follows(status):
    assert follows(failure_of(of_another_rank(status)))


def test_what_a_rank_says_of_itself_does_not_follow():
    assert not follows(failure_of(does_not_fit("CUDA out of memory")))
    assert not follows(failure_of(KeyError("lr")))
