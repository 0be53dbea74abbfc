"""Several cards are one program, and a size fits when it fits on all of them."""

from brimful.decide.cards import joined, worst_of
from brimful.decide.memory.program import program_of
from brimful.decide.memory.size_model import fit_size_model
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.replay import Peaks, Played, play
from brimful_inside.simulator.trace import (
    Free,
    Malloc,
    Phase,
    Trace,
)

MIB = 1 << 20


def trace(batch_size: int, each: int, fixed: int = 0) -> Trace:
    rows = [Phase("train"), Malloc(1, fixed + 512, "weights"), Malloc(2, batch_size * each, "work"), Free(2)]
    return Trace({"trace_version": 1}, rows)


def cards(batch_size: int) -> list[Trace]:
    """Three cards; the second has the larger weights, the third the larger work: which is the worst depends on the size."""
    return [trace(batch_size, MIB, 30 * MIB), trace(batch_size, MIB, 200 * MIB), trace(batch_size, 5 * MIB, 30 * MIB)]


def test_laws_of_joined_programs_give_each_card_and_the_worst():
    programs = {size: joined([program_of(one) for one in cards(size)]) for size in (5, 12)}
    laws = fit_size_model(programs)
    assert laws is not None and laws.exact
    for size in (5, 12, 20, 100):
        alone = [play(one.rows, CachingAllocator()) for one in cards(size)]
        assert [played.peak for played in laws.play_cards_at(size)] == [played.peak for played in alone]
        assert laws.play_at(size).peak.reserved == max(played.peak.reserved for played in alone)
    peaks = {size: [played.peak.reserved for played in laws.play_cards_at(size)] for size in (20, 100)}
    assert peaks[20].index(max(peaks[20])) == 1 and peaks[100].index(max(peaks[100])) == 2


def test_joined_programs_differ_where_one_of_them_does():
    same = joined([program_of(one) for one in cards(5)])
    other = joined([program_of(one) for one in [*cards(5)[:2], Trace({}, cards(5)[2].rows[:-1])]])
    assert same.difference(joined([program_of(one) for one in cards(9)])) is None
    assert "rows against" in str(same.difference(other))


def test_one_program_is_itself():
    program = program_of(cards(5)[0])
    assert joined([program]) is program
    assert [births for _, births in program.parts] == [2]


def test_cards_that_do_the_same_are_played_once(monkeypatch):
    import brimful.decide.replays as room

    played = []
    monkeypatch.setattr(room, "play_plain", lambda *args: played.append(args) or Played({}, Peaks(1, 2)))
    one = trace(5, MIB)
    laws = fit_size_model({5: joined([program_of(one)] * 8)})
    assert laws is not None and len(laws.play_cards_at(5)) == 8
    assert len(played) == 1


def test_the_worst_of_each_value_is_kept():
    worst = worst_of(
        [Played({"train": Peaks(1, 9)}, Peaks(1, 9)), Played({"train": Peaks(5, 2), "eval": Peaks(0, 1)}, Peaks(5, 2))]
    )
    assert worst.peak == Peaks(5, 9) and worst.phases == {"train": Peaks(5, 9), "eval": Peaks(0, 1)}
