"""The card that a script trains on is the card whose memory is counted."""

import dataclasses

import pytest

from brimful.command import parse
from brimful.errors import NoSuchDevice, UsageError
from brimful.measure.gpus import CARDS, find_gpu
from brimful.trials import devices
from brimful.trials.devices import CardRequest, Cards, choose, require_that_card
from brimful.values import Device, Source, TrialKind
from tests.brimful.measure.helper import REPORT
from tests.brimful.show.product import trial_result

CARD = Device("accelerator", "cuda:0")


def cards(*words, **more):
    return devices.cards(CardRequest(*words, **more))


def on(*labels: str):
    reports = tuple(
        dataclasses.replace(REPORT, device=label, rank=rank) for rank, label in enumerate(labels)
    )
    return dataclasses.replace(trial_result(8, TrialKind.SPEED), reports=reports)


@pytest.mark.parametrize(
    ("labels", "refused"),
    [(("cuda:1",), True), (("cuda:0",), False), (("cpu",), False), (("cuda:0", "cuda:1"), False)],
)
def test_a_script_on_another_card_is_refused_and_ranks_on_cards_of_their_own_are_not(
    labels, refused
):
    try:
        require_that_card(CARD, on(*labels))
    except UsageError as error:
        assert (
            refused and "cuda:1" in error.problem and "CUDA_VISIBLE_DEVICES=1" in error.suggestion
        )
    else:
        assert not refused


@pytest.mark.parametrize(
    ("conf", "named"),
    [("backend:cudaMallocAsync", "cudaMallocAsync"), ("no_such_key:1", "no_such_key")],
)
def test_an_allocator_that_is_not_modelled_is_refused_before_any_trial(monkeypatch, conf, named):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    with pytest.raises(UsageError, match=named):
        choose(parse(("python", "train.py")), "auto", Cards(find_gpu("t4")))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert (
        choose(parse(("python", "train.py")), "auto", Cards(find_gpu("t4")))[0].kind == "imaginary"
    )


def test_the_number_of_cards_stands_behind_a_colon():
    assert [
        kinds.count for asked in (("t4:3",), ("t4",), (None, "20GiB:2")) for kinds in cards(*asked)
    ] == [3, 1, 2]
    assert cards("t4:3")[0].gpu.key == "t4" and cards(None) == ()
    device, _ = choose(parse(("python", "train.py")), "auto", cards("t4:3")[0])
    assert (device.cards, device.label) == (3, "3 x t4 (imaginary)")


@pytest.mark.parametrize(
    ("words", "more", "placed", "bytes_per_s"),
    [
        ("h100:8x4", {}, (8, 32, 0), 50e9),
        ("a100-40gb:8x2", {}, (8, 16, 0), 25e9),
        ("h100:8", {"ranks": 32}, (8, 32, 0), 50e9),  # as a launcher would start so many
        ("h100:8x4", {"link": "100Gb", "as_rank": 31}, (8, 32, 31), 12.5e9),
        ("h100:8x1", {}, (8, None, None), None),
        ("h100:8", {}, (8, None, None), None),
    ],
)
def test_machines_stand_behind_the_cards_of_each_and_have_a_network(
    words, more, placed, bytes_per_s
):
    (machines,) = cards(words, **more)
    network = machines.gpu.network_bytes_per_s
    assert (machines[1:], network and network.value) == (placed, bytes_per_s)


def test_machines_are_named_with_their_cards_and_the_speed_of_their_network_is_assumed():
    (machines,) = cards("h100:8x4")
    assert machines.gpu.network_bytes_per_s.source is Source.ASSUMED
    device, _ = choose(parse(("python", "train.py")), "auto", machines)
    assert device.label == "4 machines of 8 x h100 (imaginary)"


@pytest.mark.parametrize(
    ("ranks", "count", "machines"), [(1, 1, 1), (4, 4, 1), (8, 8, 1), (12, 8, 2), (64, 8, 8)]
)
def test_ranks_without_a_number_of_cards_are_on_machines_of_eight_and_that_is_said(
    ranks, count, machines
):
    (assumed,) = cards("h100", ranks=ranks)
    assert (assumed.count, assumed.ranks) == (count, ranks)
    assert choose(parse(("python", "t.py")), "auto", assumed)[0].machines == machines
    assert (assumed.gpu.network_bytes_per_s is not None) is (machines > 1)
    notes = devices.which_was_taken(CardRequest("h100", ranks=ranks))
    assert [note.code for note in notes] == ["machines-assumed"] * (ranks > 1)
    assert all(f"h100:{count}x{machines}" in note.suggestion for note in notes)
    named = CardRequest(f"h100:{count}", ranks=ranks)
    assert devices.which_was_taken(named) == [] and devices.cards(named) == (assumed,)
    assert cards("h100:1", ranks=ranks)[0].count == 1, "as it was named"


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"gpu": "h100:8x4", "ranks": 12}, "32 cards, and a rank has one"),
        ({"gpu": "h100:8x4", "as_rank": 32}, "counted from 0"),
        ({"gpu": "h100:8", "link": "400Gb"}, "the network between machines"),
        ({"gpu": "h100:8x2", "link": "0Gb"}, "in bits, as 400Gb"),
        ({"gpu": "h100:8x2", "link": "5 bananas"}, "in bits, as 400Gb"),
        ({"gpu_memory": "20GiB:8x2", "ranks": 3}, "20GiB:8x2 with --ranks 3"),
        ({"gpu": "t4", "as_rank": 3}, ""),
        ({"gpu": "t4", "ranks": 4, "as_rank": 4}, ""),
        ({"gpu": "t4", "ranks": 0}, ""),
        ({"gpu": "t4", "ranks": 2, "as_rank": -1}, ""),
        ({"gpu": None, "ranks": 2}, ""),
    ],
)
def test_machines_and_ranks_that_make_no_sense_are_refused_by_what_was_typed(asked, named):
    with pytest.raises(UsageError) as error:
        cards(**{"gpu": None, **asked})
    assert named in " ".join(error.value.sentences())


def test_several_cards_stand_between_commas_each_kind_and_number_once():
    kinds = [(kind.gpu.key, kind.count) for kind in cards("l4, a100-80gb:1..3,L4,h100")]
    assert kinds == [("l4", 1), ("a100-80gb", 1), ("a100-80gb", 2), ("a100-80gb", 3), ("h100", 1)]
    assert [kind.gpu.key for kind in cards("all")] == [gpu.key for gpu in CARDS]
    assert {kind.count for kind in cards("all:2")} == {2}


@pytest.mark.parametrize(
    ("text", "error", "named"),
    [
        ("l4,,t4", UsageError, "a name is missing"),
        ("l4,h900", NoSuchDevice, "no card called 'h900'"),
        ("l4,", UsageError, "missing"),
        *((f"t4:{number}", UsageError, "cards") for number in ("", "0", "x", "-1", "65")),
        *((f"t4:{number}", UsageError, "cards") for number in ("3..2", "0..2", "1..8x2")),
        *((f"t4:{number}", UsageError, "cards") for number in ("8x", "8x0", "0x8", "x8", "8x-1")),
        ("l4,t4:0", UsageError, "cards"),
    ],
)
def test_a_list_of_cards_with_a_mistake_or_a_number_that_makes_no_sense_is_refused_by_name(
    text, error, named
):
    with pytest.raises(error, match=named):
        cards(text)


def test_one_rank_of_many_is_the_first_unless_the_user_names_another():
    assert cards("t4:8", ranks=64)[0][2:] == (64, 0)
    assert cards("t4:8", ranks=64, as_rank=63)[0][2:] == (64, 63)
    device, _ = choose(parse(("python", "train.py")), "auto", cards("t4:8", ranks=64, as_rank=9)[0])
    assert (device.cards, device.ranks, device.as_rank) == (8, 64, 9)
