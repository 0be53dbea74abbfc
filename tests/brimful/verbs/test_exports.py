"""The files that `predict` leaves for other tools, in worlds where the truth is known."""

import pickle
import re
from dataclasses import dataclass, replace

import pytest

from brimful import predict
from brimful.errors import UsageError
from brimful_inside.wire import CardSeen
from tests.brimful.decide.memory.test_snapshot import allocated as heights
from tests.brimful.verbs.world import MIB, Uneven, World, work

ASKED = ("my-train", "--batch-size", "64")


def snapshot_of(world, tmp_path, argv=ASKED, **more):
    """(The prediction, the snapshot that it left.)"""
    path, card = tmp_path / "peak.pickle", {"gpu": "a100-40gb"} | more
    prediction = work(world, predict, argv, snapshot=path, **card).prediction
    return prediction, pickle.loads(path.read_bytes())


@pytest.mark.parametrize("argv", [ASKED, ("my-train", "--batch-size", "{batch_size}")])
@pytest.mark.parametrize(
    "world", [World(), World(quadratic=700_000), World(kink_at=40, kink_bytes=3 * MIB)]
)
def test_a_snapshot_is_of_the_predicted_peak_to_the_byte(tmp_path, argv, world):
    prediction, snapshot = snapshot_of(world, tmp_path, argv, gpu_memory="4GiB", gpu=None)
    peak = prediction.peak
    assert max(map(max, map(heights, snapshot["device_traces"]))) == peak.allocated_bytes
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == peak.reserved_bytes
    (written,) = prediction.written
    assert f"at batch size {prediction.batch_size:,} on a card with 4.00 GiB, " in written.what
    assert "pytorch.org/memory_viz" in written.how


@pytest.mark.parametrize(
    ("world", "card", "verdict", "said"),
    [
        (World(linear=400 * MIB), "t4", "does_not_fit", "at batch size 64 on Tesla T4"),
        (
            World(ignores=True, cap=16),
            "a100-40gb",
            "fits",
            "at batch size 64 (16 in force) on NVIDIA A100",
        ),
    ],
    ids=["too large", "ignored"],
)
def test_a_size_that_does_not_fit_is_shown_as_it_would_be_and_one_that_is_ignored_as_it_is(
    tmp_path, world, card, verdict, said
):
    prediction, snapshot = snapshot_of(world, tmp_path, gpu=card)
    assert prediction.verdict == verdict and said in prediction.written[0].what
    assert max(heights(snapshot["device_traces"][0])) == prediction.peak.allocated_bytes


def test_of_uneven_batches_it_is_of_the_largest_samples_and_says_so(tmp_path):
    prediction, snapshot = snapshot_of(Uneven(), tmp_path, gpu_memory="4GiB", gpu=None)
    alone = prediction.largest_batches_peak
    assert max(heights(snapshot["device_traces"][0])) == alone.allocated_bytes
    assert "batches of the largest samples" in prediction.written[0].what


@dataclass
class OnTwoCards(World):
    """A model of whose two halves the second one lies on the second card, and is smaller."""

    def launch(self, trial, folder, *rest, **more):
        result = super().launch(trial, folder, *rest, **more)
        lines = (folder / "trace-0.jsonl").read_text().splitlines()
        smaller = [line for line in lines if not re.match(r'\["(malloc|free)",2[01]\b', line)]
        (folder / "trace-1.jsonl").write_text("\n".join(smaller) + "\n")
        cards = [CardSeen(n, result.peak, f"trace-{n}.jsonl") for n in (0, 1)]
        return replace(result, reports=tuple(replace(r, cards=cards) for r in result.reports))


def test_every_card_is_a_device_with_a_history_of_its_own(tmp_path):
    world = OnTwoCards(quadratic=9000, dataset=None)
    prediction, snapshot = snapshot_of(world, tmp_path, gpu="a100-40gb:2")
    peaks = [max(heights(entries)) for entries in snapshot["device_traces"]]
    assert peaks == [card.peak.allocated_bytes for card in prediction.cards]
    assert peaks[0] > peaks[1] and max(peaks) == prediction.peak.allocated_bytes
    assert {segment["device"] for segment in snapshot["segments"]} == {0, 1}
    assert "on 2 cards, each a device of the viewer" in prediction.written[0].what


def test_a_file_that_cannot_be_written_is_refused_before_any_trial(tmp_path):
    world = World()
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        work(world, predict, ASKED, gpu="a100-40gb", snapshot=tmp_path / "none" / "peak.pickle")
    assert world.launched == []
