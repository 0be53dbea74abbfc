from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from brimful.train.checkpoints.folder import Kept, best_of, to_remove

scores = st.none() | st.floats(width=16)
histories = st.lists(st.tuples(scores, st.booleans(), st.integers(0, 50)), max_size=12).map(
    lambda rows: [Kept(number, step, score, whole) for number, (score, whole, step) in enumerate(rows)]
)
options = {"keep_last": st.integers(1, 4), "keep_best": st.booleans(), "best": st.sampled_from(["min", "max"])}


@given(found=histories, **options)
def test_the_newest_whole_one_and_the_best_stay_whatever_happened(found, keep_last, keep_best, best):
    gone = to_remove(found, keep_last=keep_last, keep_best=keep_best, best=best)
    newest = [one for one in found if one.whole][-1:]
    assert not set(newest) & set(gone)
    if keep_best:
        assert best_of(found, best) not in gone


@given(found=histories, **options)
def test_as_many_whole_ones_stay_as_asked_and_no_more_than_one_besides(found, keep_last, keep_best, best):
    gone = to_remove(found, keep_last=keep_last, keep_best=keep_best, best=best)
    whole = [one for one in found if one.whole]
    left = [one for one in whole if one not in gone]
    assert len(left) >= min(keep_last, len(whole))
    assert len(left) <= keep_last + keep_best
    assert left[-keep_last:] == whole[-keep_last:]


@given(found=histories, **options)
def test_a_damaged_one_stays_until_there_are_enough_whole_ones_after_it(found, keep_last, keep_best, best):
    gone = to_remove(found, keep_last=keep_last, keep_best=keep_best, best=best)
    for one in found:
        if not one.whole:
            after = sum(other.whole and other.save > one.save for other in found)
            assert (one in gone) == (after >= keep_last)


@given(histories, st.sampled_from(["min", "max"]))
def test_no_score_is_better_than_the_best_and_the_first_of_equals_wins(found, best):
    winner = best_of(found, best)
    rivals = [one for one in found if one.whole and one.score is not None and not math.isnan(one.score)]
    assert (winner is None) == (not rivals)
    for one in rivals:
        assert not (one.score < winner.score if best == "min" else one.score > winner.score)
        assert one.score != winner.score or winner.save <= one.save


def test_smaller_steps_written_later_are_newer():
    found = [Kept(1, 900, None, True), Kept(2, 1000, None, True), Kept(3, 50, None, True)]
    assert [one.save for one in to_remove(found, keep_last=1, keep_best=True, best="min")] == [1, 2]
