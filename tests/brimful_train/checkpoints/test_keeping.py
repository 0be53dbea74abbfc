import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from brimful_train.checkpoints.folder import Kept, best_of, to_remove


@st.composite
def histories(draw):
    """Checkpoints of one training, oldest first."""
    best = draw(st.sampled_from(["min", "max"]))
    rows = draw(
        st.lists(
            st.tuples(st.none() | st.floats(width=16), st.booleans(), st.integers(0, 50)),
            max_size=12,
        )
    )
    return [
        Kept(Path(f"step-{step}-save-{number}"), score, best, whole=whole)
        for number, (score, whole, step) in enumerate(rows)
    ]


@given(histories(), st.integers(1, 4), st.booleans())
def test_the_newest_whole_ones_and_the_best_stay_whatever_happened(
    checkpoints, keep_last, keep_best
):
    gone = to_remove(checkpoints, keep_last=keep_last, keep_best=keep_best)
    whole = [kept for kept in checkpoints if kept.whole]
    left = [kept for kept in whole if kept not in gone]
    assert left[-keep_last:] == whole[-keep_last:]
    assert len(left) <= keep_last + keep_best
    if keep_best:
        assert best_of(checkpoints) not in gone
    for kept in checkpoints:  # a damaged one stays until there are enough whole ones after it
        if not kept.whole:
            assert (kept in gone) == (sum(other.save > kept.save for other in whole) >= keep_last)


@given(histories())
def test_no_score_is_better_than_the_best_and_the_first_of_equals_wins(checkpoints):
    winner = best_of(checkpoints)
    rivals = [
        kept
        for kept in checkpoints
        if kept.whole and kept.score is not None and not math.isnan(kept.score)
    ]
    assert (winner is None) == (not rivals)
    for kept in rivals:
        assert not (kept.score < winner.score if kept.best == "min" else kept.score > winner.score)
        assert kept.score != winner.score or winner.save <= kept.save
