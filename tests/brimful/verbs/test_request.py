"""What is asked of a queue, in worlds where the truth is known."""

from dataclasses import replace

import pytest

from brimful import predict
from brimful.ask.cards import by_memory, by_price
from brimful.decide.loading import SHARE, TRAINING_SHARE, WORKER_BYTES
from brimful.decide.queue_request import CUDA_HOST_BYTES, queue_request
from brimful.errors import DoesNotFit
from brimful.measure.gpus.prices import keep
from brimful.show.several_sections import which_sentence
from brimful.values import PhasePeak, Source, Verdict
from brimful.verbs.request import request
from brimful_inside.wire import CardSeen, LoadingSpeed
from tests.brimful.ask.test_speed import Clocked
from tests.brimful.decide.test_host_room import loader
from tests.brimful.verbs.world import GIB, MIB, World, reporting, work

FOUR = "t4,l4,a100-40gb,h100"
ALIKE = [[7, 5], [8, 0], [8, 6], [8, 9], [9, 0], [10, 0], [12, 0]]
WORDS = ("my-train", "--batch-size", "64")


def large():
    """18.6 GiB at 64."""
    return World(fixed=3 * GIB, linear=250 * MIB)


def asked(world=None, words=WORDS, **more):
    return work(reporting(world=world or large(), alike=ALIKE), request, words, **more)


def holding(host_bytes, *loaders, world=None, **of_report):
    """A world whose processes hold so much host memory, with these loaders."""
    return reporting(
        lambda result: replace(result, process_tree_host_bytes=host_bytes),
        world or large(),
        alike=ALIKE,
        loaders=list(loaders),
        **of_report,
    )


def test_the_smallest_card_that_fits_is_asked_for_and_of_as_large_ones_the_cheapest():
    record, ask = asked(gpu=FOUR)
    assert (ask.gpu.key, ask.cards, ask.machines, ask.ranks, ask.batch_size) == ("l4", 1, 1, 1, 64)
    fits = [line for line in record.prediction.which if line.verdict is Verdict.FITS]
    assert [line.gpu.key for line in fits] == ["l4", "a100-40gb", "h100"]
    assert record.prediction.gpu.key == "l4" and fits[0].traced
    assert "3 fit; the smallest is NVIDIA L4" in which_sentence(record.prediction)
    alone = work(large(), predict, WORDS, gpu="l4")
    assert ask.peak_bytes.value == alone.prediction.peak.device_bytes
    as_large = asked(Clocked(), gpu="a100-80gb,h100")[0].prediction.which
    assert by_memory(as_large[0])[:2] == by_memory(as_large[1])[:2], "79 GiB"
    assert list(as_large) == sorted(as_large, key=by_price)


@pytest.mark.parametrize(
    ("named", "cards", "smallest"),
    [
        ({}, 39, "rtx3070"),  # 7.8 GiB
        ({"queue": "ray"}, 13, "t4"),
        ({"queue": "skypilot"}, 26, "rtx3060-12gb"),
    ],
)
def test_without_a_name_all_cards_are_looked_at_that_the_queue_has_a_name_for(
    named, cards, smallest
):
    record, ask = asked(World(fixed=100 * MIB, linear=64 * 1024), **named)
    assert (len(record.prediction.which), ask.gpu.key) == (cards, smallest)


def test_host_memory_is_what_a_trial_held_with_cuda_and_what_the_policy_lets_the_loader_have():
    world = holding(3 * GIB, loader(batch=64, mib=1, workers=4, pin=False))
    _, ask = work(world, request, WORDS, gpu=FOUR)
    loading = 4 * WORKER_BYTES + (1 + 4 * 2) * 64 * MIB
    assert ask.host_bytes.value == pytest.approx(3 * GIB + CUDA_HOST_BYTES + loading / SHARE, abs=1)
    assert ask.host_bytes.source is Source.ESTIMATE and "measured" in ask.host_bytes.note
    assert ask.shm_bytes == (1 + 4 * 2) * 64 * MIB
    evaluates = holding(3 * GIB, loader(batch=64, workers=4), loader("eval", workers=4))
    _, more = work(evaluates, request, WORDS, gpu=FOUR)
    kept = loading / (SHARE * TRAINING_SHARE)
    assert more.host_bytes.value == pytest.approx(3 * GIB + CUDA_HOST_BYTES + kept, abs=1)
    assert asked(gpu=FOUR)[1].host_bytes is None, "no trial showed any"


def test_there_is_a_core_for_the_training_and_for_each_worker_that_keeps_up_with_the_card():
    _, ask = work(holding(GIB, loader(workers=4)), request, WORDS, gpu=FOUR)
    assert (ask.cores.value, ask.cores.source) == (5, Source.ASSUMED)
    assert "4 loader workers" in ask.cores.note
    record, ask = work(
        holding(
            GIB,
            replace(loader(workers=1), speeds={"1": LoadingSpeed(2e3, 2e3, 2e3)}),
            world=Clocked(),
        ),
        request,
        WORDS,
        gpu="a100-40gb",
    )
    needed = record.prediction.loading.needed
    assert needed > 1 and (ask.cores.value, ask.cores.source) == (1 + needed, Source.PREDICTED)
    assert "the command has 1" in ask.cores.note
    busy = replace(loader(workers=1), speeds={"1": LoadingSpeed(2e3, 2e3, 2e3, 0.9)})
    _, ask = work(holding(GIB, busy, world=Clocked()), request, WORDS, gpu="a100-40gb")
    assert (ask.cores.value, ask.cores.source) == (2, Source.ASSUMED), "what was timed says nothing"


def test_cards_that_the_command_leaves_idle_are_not_asked_for():
    record, ask = asked(gpu="l4:4")
    assert (ask.cards, ask.ranks, ask.tasks) == (1, 1, 1)
    two = [CardSeen(index, PhasePeak(GIB, GIB, GIB, None)) for index in (0, 1)]
    (report,) = record.trials[-1].reports
    trials = [replace(record.trials[-1], reports=(replace(report, cards=two),) * 2)]
    ask = queue_request(record.prediction, trials)
    assert (ask.cards, ask.ranks, ask.tasks) == (4, 2, 1)


@pytest.mark.parametrize(
    ("launcher", "tasks"),
    [
        (("torchrun", "--nproc-per-node", "8"), 1),
        (("python", "-m", "torch.distributed.run", "--nproc-per-node", "8"), 1),
        (("accelerate", "launch"), 1),
        (("python",), 8),
    ],
)
def test_of_ranks_that_are_started_alone_the_queue_starts_all_or_their_launcher(launcher, tasks):
    world = holding(3 * GIB, loader(batch=64, workers=4))
    words = (*launcher, "train.py", "--strategy", "deepspeed", "--batch-size", "64")
    _, ask = work(world, request, words, gpu="l4:8x4")
    assert (ask.cards, ask.machines, ask.ranks, ask.tasks) == (8, 4, 8, tasks)
    assert ask.cores.value == 8 * 5
    _, alone = work(world, request, WORDS, gpu="l4")
    assert ask.host_bytes.value == pytest.approx(8 * alone.host_bytes.value, rel=1e-6)


def test_of_one_and_several_cards_those_that_are_asked_for_are_described_by_their_own_trials():
    record, ask = work(reporting(world=large(), alike=[]), request, WORDS, gpu="l4:1..2")
    assert (ask.cards, ask.machines) == (1, 1)
    of_two, of_one = (
        next(trial for trial in record.trials if trial.trial.device.cards == count)
        for count in (2, 1)
    )
    used = [CardSeen(index, PhasePeak(GIB, GIB, GIB, None)) for index in (0, 1)]
    of_two = replace(of_two, reports=(replace(of_two.reports[0], cards=used),))
    for line in record.prediction.which:
        prediction = replace(record.prediction, rows=(line,), rows_of="cards")
        assert queue_request(prediction, [of_two, of_one]).cards == line.cards


def test_the_smallest_card_is_not_the_cheapest_or_fastest(tmp_path):
    (tmp_path / "own.toml").write_text("a100-40gb = 0.001")
    keep(tmp_path / "own.toml", tmp_path)
    world = reporting(world=Clocked(fixed=3 * GIB, linear=250 * MIB), alike=ALIKE)
    assert work(world, predict, WORDS, gpu=FOUR, home=tmp_path).prediction.gpu.key == "a100-40gb"
    assert work(world, request, WORDS, gpu=FOUR, home=tmp_path)[1].gpu.key == "l4"


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"gpu": "t4,rtx3060-12gb"}, r"Of 2 cards none fits.*does not fit"),
        ({"gpu_memory": "12GiB"}, ""),
    ],
)
def test_where_no_card_fits_for_sure_there_is_nothing_to_ask_for(where, says):
    with pytest.raises(DoesNotFit, match=says) as error:
        asked(**where)
    assert "nothing to ask" in error.value.explanation


def test_a_batch_size_that_is_left_open_says_which_card_is_the_smallest_only_for_one():
    words = ("my-train", "--batch-size", "{batch_size}")
    assert asked(words=words, settings={"batch_size": 64}, gpu=FOUR)[1].gpu.key == "l4"
    record, ask = asked(words=words, gpu="l4")
    assert ask.batch_size == record.prediction.largest_batch_size
