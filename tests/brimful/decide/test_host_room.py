"""What a command asks of a machine's host memory, what it does, and what there is room for: each on
a machine and a loader whose truth is known.
"""

import dataclasses

import pytest

from brimful import audit
from brimful.decide.host_room import host_room
from brimful.decide.loading import Host
from brimful_inside.wire import Asked, BatchSeen, LoaderSeen
from tests.brimful.verbs.world import reporting as world_of
from tests.brimful.verbs.world import work

GIB = 1 << 30
ROOMY = Host(100 * GIB, 64, 100 * GIB)
SMALL = dataclasses.replace(ROOMY, free_bytes=13 * GIB)


def loader(role="train", batch=32, mib=1, workers=16, prefetch=2, pin=False, length=1000):
    """Samples of so many MiB, as brimful counts them."""
    return LoaderSeen(
        role,
        batch,
        batch * length,
        length,
        "RandomSampler",
        batch * length,
        False,
        workers,
        pin,
        12,
        12 * batch,
        [BatchSeen(batch, [[batch, mib << 17]], None)],
        prefetch_factor=prefetch,
    )


def shown(host, *loaders, asked=(), words=("--batch-size", "32")):
    """(first line, rows by name) of a command with these loaders."""
    world = world_of(loaders=list(loaders), asked=list(asked))
    record = work(world, audit, ("my-train", *words), device="cpu")
    flags = record.opened.command.found_flags
    room = host_room(host, record.trials[-1], record.audit, flags)
    return room.summary, {row.name: row for row in room.settings}


def test_a_machine_with_room_for_everything_says_so():
    sentence, rows = shown(ROOMY, loader(), loader("eval", batch=96, workers=0, prefetch=None))
    assert sentence == "This machine has room for all that the command asks for."
    assert [(row.name, row.requested, row.effective, row.room) for row in rows.values()] == [
        ("num_workers", None, 16, 64),
        ("prefetch_factor", None, 2, 2),
        ("pin_memory", False, False, False),
        ("batch_size", 32, 32, 32),
        ("eval_batch_size", None, 96, 96),
    ]
    assert rows["batch_size"].place == "--batch-size"
    assert rows["pin_memory"].why == "there is no card to copy to"


@pytest.mark.parametrize(
    ("machine", "room", "why"),
    [
        (
            {"free_bytes": 4 * GIB},
            7,
            "4.00 GiB of memory are free, loading may take 60%",
        ),
        ({"cores": 6}, 6, "there are 6 cores"),
        (
            {"shm_free_bytes": 1 * GIB},
            9,
            "/dev/shm has 1.00 GiB free for batches of 32.0 MiB",
        ),
    ],
)
def test_what_bounds_the_workers_is_named_in_the_first_line(machine, room, why):
    sentence, rows = shown(
        dataclasses.replace(ROOMY, **machine), loader(), words=("--workers", "16")
    )
    assert sentence == f"{room} of the 16 workers asked for fit here: {why}."
    row = rows["num_workers"]
    assert (row.requested, row.place, row.room) == (16, "the command", room)
    assert "takes 320 MiB, 256 MiB of it assumed" in rows["prefetch_factor"].why


def test_a_number_that_the_script_lowers_in_silence_stands_beside_what_was_asked_for():
    changed = Asked("num_workers", "workers", 16, "train.py:6", "replaced", 2, "train.py:9", "min")
    sentence, rows = shown(ROOMY, loader(workers=2), asked=[changed], words=("--workers", "16"))
    assert sentence == ("The script has 2 workers where 16 were asked for; there is room for 64.")
    assert rows["num_workers"].why.endswith("; train.py:9 makes it 2")


@pytest.mark.parametrize(
    ("training", "first_line", "room"),
    [
        (
            {"mib": 1024, "workers": 0, "prefetch": None},
            "7 of the 32 samples of a batch asked for fit here: a sample takes 1.00 GiB, and 13.0 "
            "GiB of memory are free, loading may take 60%.",
            (0, None),
        ),
        (
            {"mib": 64, "workers": 4, "prefetch": 8},
            "1 of the 4 workers asked for fit here: 13.0 GiB",
            (1, 2),  # fewer ahead leave room for some
        ),
    ],
    ids=["batches that are too large", "too many batches ahead"],
)
def test_what_the_host_has_no_room_for_is_named_with_what_fits(training, first_line, room):
    sentence, rows = shown(SMALL, loader(**training))
    assert sentence.startswith(first_line) and rows["num_workers"].room == room[0]
    assert room[1] is None or rows["prefetch_factor"].room == room[1]


def test_the_evaluation_has_what_the_training_leaves():
    evaluation = loader("eval", batch=8192, workers=0, prefetch=None)
    alone, beside = (
        shown(SMALL, loader(workers=workers), evaluation)[1]["eval_batch_size"].room
        for workers in (0, 8)
    )
    taken = 8 * (256 + 2 * 32)  # MiB, by the workers
    assert alone - beside == taken


def test_beside_a_card_pinned_memory_is_counted():
    card = dataclasses.replace(SMALL, cards=1)
    assert shown(card, loader(pin=True))[1]["pin_memory"].room is True
    pinned, plain = (shown(card, loader(mib=8, pin=pin))[1]["num_workers"] for pin in (True, False))
    assert pinned.room < plain.room


def test_of_a_script_without_a_loader_nothing_is_claimed():
    sentence, rows = shown(ROOMY)
    assert rows == {} and sentence.startswith("The trial saw no DataLoader")
