"""Several cards in an answer: those that need the same are one row; JSON has each."""

from dataclasses import replace

import pytest

from brimful.show.as_json import audit_json, prediction_json
from brimful.show.cards import card_groups, cards_text
from brimful.show.facts import audited_phases, predicted_phases
from brimful.show.verdict import of_prediction
from brimful.values import CardPeak
from tests.show import pieces, records

SAID = pieces.prediction()
PEAK = SAID.peak
SMALLER = replace(PEAK, device_bytes=PEAK.device_bytes // 2, reserved_bytes=PEAK.reserved_bytes // 2)


def several(*peaks):
    return tuple(CardPeak(rank, rank, peak) for rank, peak in enumerate(peaks))


def test_cards_that_need_the_same_are_one_row():
    assert card_groups(several(PEAK, PEAK, PEAK)) == [("each of 3 cards", PEAK)]
    assert card_groups(()) == []


def test_others_are_named_the_fullest_first():
    groups = card_groups(several(SMALLER, PEAK, SMALLER))
    assert groups == [("rank 1, cuda:1", PEAK), ("rank 0, cuda:0; rank 2, cuda:2", SMALLER)]
    of_one_process = (CardPeak(0, 0, PEAK), CardPeak(0, 1, SMALLER))
    assert [label for label, _ in card_groups(of_one_process)] == ["cuda:0", "cuda:1"]
    assert card_groups(several(PEAK, *[SMALLER] * 7))[1][0] == "rank 1, cuda:1 and 6 more"


def test_the_rows_stand_among_the_phases():
    names = [row.name for row in predicted_phases(replace(SAID, cards=several(PEAK, SMALLER)))[1]]
    assert names[-2:] == ["rank 0, cuda:0", "rank 1, cuda:1"]


def test_the_verdict_says_for_how_many_cards_it_is():
    assert "each of 2 x NVIDIA" in of_prediction(replace(SAID, cards=several(PEAK, SMALLER))).sentence
    assert "as one of 64 ranks" in of_prediction(replace(SAID, alone_of=64)).sentence
    assert cards_text(SAID) == SAID.gpu.name


@pytest.mark.parametrize(("change", "ranks"), [({}, 1), ({"cards": several(PEAK, SMALLER)}, 2), ({"alone_of": 64}, 64)])
def test_json_has_each_card_and_how_many_ranks_it_is_for(change, ranks):
    said = prediction_json(replace(SAID, **change))
    assert said["ranks"] == ranks
    assert [(card["rank"], card["card"], card["device_bytes"]) for card in said["cards"]] == [
        (card.rank, f"cuda:{card.index}", card.peak.device_bytes) for card in change.get("cards", ())
    ]


def test_an_audit_has_a_row_for_each_card():
    seen = records.audit()
    peaks = {"rank 0, cuda:0": seen.peak, "rank 1, cuda:1": seen.peak}
    assert [row.name for row in audited_phases(replace(seen, cards=peaks))[-2:]] == list(peaks)
    assert list(audit_json(replace(seen, cards=peaks))["cards"]) == list(peaks)
    assert audit_json(seen)["cards"] == {}
