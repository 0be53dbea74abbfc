"""Ranks that hold memory on other ranks' cards."""

from dataclasses import replace

from brimful.decide.memory.fit import context_of
from brimful.decide.memory.strays import Stray, about_strays, on_the_fullest, strays
from brimful.measure.gpus import find_gpu
from brimful.values import PhasePeak
from brimful_inside.wire import CardSeen, Report
from tests.brimful.decide.programs import MIB


def rank(number: int, **reserved: int) -> Report:
    """A rank with so many MiB on `cuda0`, `cuda1` and so on."""
    cards = tuple(
        CardSeen(index=int(name[-1]), peak=PhasePeak(None, mib * MIB, None, None))
        for name, mib in reserved.items()
    )
    report = Report(number, 4, "imaginary", None, "2.13.0", "steps_done", 4, 1)
    return replace(report, cards=list(cards))


LOADED = [
    rank(0, cuda0=900),
    rank(1, cuda1=700, cuda0=400),
    rank(2, cuda2=700, cuda0=410, cuda1=20),
    rank(3, cuda3=700),
]


def test_what_a_rank_holds_where_another_works_is_stray_and_its_own_cards_are_not():
    assert strays(LOADED) == [
        Stray(1, 0, 400 * MIB),
        Stray(2, 0, 410 * MIB),
        Stray(2, 1, 20 * MIB),
    ]
    of_two_cards_each = [rank(0, cuda0=5, cuda1=4), rank(1, cuda2=5, cuda3=4)]
    assert strays(of_two_cards_each) == [], "no other rank works on the second cards"
    assert strays([rank(0)]) == [] == on_the_fullest([])


def test_the_fullest_card_holds_all_of_them_and_a_context_for_each():
    t4, beside = find_gpu("t4"), on_the_fullest(strays(LOADED))
    alone, shared = context_of(t4, False), context_of(t4, False, strays=beside)
    assert beside == [400 * MIB, 410 * MIB]
    assert shared.value == 3 * alone.value + 810 * MIB
    assert shared.high - shared.value == 3 * (alone.high - alone.value)


def test_one_sentence_for_each_such_card_says_how_many_ranks():
    problems = [note.problem for note in about_strays(LOADED)]
    assert problems == [
        "cuda:0 holds memory of 2 other ranks as well, up to 410 MiB and a CUDA context each",
        "cuda:1 holds memory of 1 other rank as well, up to 20.0 MiB and a CUDA context each",
    ]
