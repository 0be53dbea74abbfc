"""Why nothing larger was tried: each end of the way up has its sentence, but the one that needs none."""

import pytest
from brimful.decide.top import Top, top_sentence


@pytest.mark.parametrize(
    ("top", "limited_by", "said"),
    [
        (Top.CEILING, "dataset", "all that the training data gives"),
        (Top.CEILING, "max_batch_size", "--max-batch-size"),
        (Top.CEILING, "budget", "within the budget"),
        (Top.MEMORY, "dataset", "was not within the budget"),
        (Top.FAILED, "dataset", "failed by itself"),
        (Top.TRIALS, "dataset", "24 trials"),
    ],
)
def test_what_limited_it_is_named_with_the_size(top, limited_by, said):
    sentence = top_sentence(top, 2000, limited_by, 24)
    assert sentence is not None and said in sentence and "2,000" in sentence


@pytest.mark.parametrize("top", [Top.FLAT, None])
def test_where_larger_sizes_brought_nothing_there_is_nothing_to_say(top):
    assert top_sentence(top, 2000, "dataset", 24) is None
