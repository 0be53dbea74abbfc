"""Arrays: samples and batches of them."""

from __future__ import annotations

import warnings

import numpy
import pytest
import torch
from torch.utils.data import Dataset, default_collate

from brimful.errors import DoesNotFit, UsageError
from brimful.train.config import DataConfig
from brimful.train.data import arrays
from brimful.train.data.arrays import Arrays, Resident, decide_residence
from tests.brimful_inside.helper import run_trial

TYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bool"]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_batch_is_what_collating_its_samples_gives(dtype):
    images = numpy.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (7, 3, 2)).astype(dtype)
    data = Arrays(images=images, labels=torch.arange(7))
    indices = [5, 0, 5, 6]
    batch, collated = data.take(numpy.array(indices)), default_collate([data[i] for i in indices])
    assert list(batch) == ["images", "labels"]
    for name in batch:
        assert batch[name].dtype == collated[name].dtype and torch.equal(batch[name], collated[name])
    assert (batch["images"].numpy() == images[indices]).all()


def test_unnamed_arrays_give_tuples():
    data = Arrays(numpy.arange(6.0).reshape(3, 2), numpy.arange(3))
    assert isinstance(data[0], tuple) and isinstance(data.take([1]), tuple)
    assert len(data) == 3 and data.bytes == 6 * 8 + 3 * 8


def test_a_read_only_memmap_is_read_in_place_and_without_a_warning(tmp_path):
    numpy.save(tmp_path / "images.npy", numpy.arange(12, dtype=numpy.uint8).reshape(4, 3))
    mapped = numpy.load(tmp_path / "images.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = Arrays(mapped)
    assert data.tensors[0].data_ptr() == mapped.ctypes.data
    assert data.take([3, 0])[0].tolist() == [[9, 10, 11], [0, 1, 2]]


def test_what_is_done_to_a_batch_or_a_sample_in_place_does_not_reach_the_data():
    images = torch.zeros(4, 3)
    data = Arrays(images)
    data.take([0, 1, 2, 3])[0].fill_(9)
    data[2][0].fill_(9)
    assert images.sum() == 0


def test_an_array_turned_around_is_taken_as_it_reads():
    assert Arrays(numpy.arange(4)[::-1]).take([0, 3])[0].tolist() == [3, 0]


def test_the_end_of_the_data_ends_a_loop_over_it():
    assert len(list(Arrays(torch.arange(3)))) == 3  # type: ignore[call-overload]
    with pytest.raises(IndexError):
        Arrays(torch.arange(3))[3]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Arrays(images=numpy.zeros((100, 2)), labels=numpy.zeros(99)), "images has 100, labels has 99"),
        (lambda: Arrays(numpy.zeros(2), numpy.zeros(3)), "array 0 has 2, array 1 has 3"),
        (lambda: Arrays(texts=numpy.array(["a", "b"])), "texts has the type <U1"),
        (lambda: Arrays(numpy.array([None])), "array 0 has the type object"),
        (lambda: Arrays(labels=torch.tensor(3)), "labels is a single number"),
        (lambda: Arrays(), "0 unnamed and 0 named"),
        (lambda: Arrays(numpy.zeros(2), labels=numpy.zeros(2)), "1 unnamed and 1 named"),
    ],
)
def test_what_cannot_be_samples_is_said(make, said):
    with pytest.raises(UsageError) as caught:
        make()
    assert said in caught.value.problem and caught.value.suggestion


CARD = torch.device("cuda", 0)
IMAGINARY = {"name": "A card", "total_bytes": 8 << 30, "context_bytes": 0, "capability": [8, 0], "multiprocessors": 108}
MIB = 1 << 20


def decided(monkeypatch, free_device, free_host, ranks=1, size=100 * MIB, **config):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_device, 80 << 30))
    monkeypatch.setattr(arrays.host, "free_bytes", lambda: free_host)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    return decide_residence(Arrays(torch.empty(size, dtype=torch.uint8)), CARD, DataConfig(**config))


@pytest.mark.parametrize(
    ("free_device", "free_host", "ranks", "lives", "why"),
    [
        (400, 400, 1, "device", "25% of 400 MiB free on the device hold it"),
        (399, 400, 1, "pinned", "25% of 400 MiB free on the host hold it"),
        (399, 400, 2, "host", "a copy for each of 2 ranks"),
        (399, 399, 1, "host", "neither do 25% of 399 MiB free on the host"),
    ],
)
def test_data_lives_where_its_share_of_the_free_memory_holds_it(monkeypatch, free_device, free_host, ranks, lives, why):
    told = decided(monkeypatch, free_device * MIB, free_host * MIB, ranks)
    assert told.requested is None and told.effective == lives
    assert "the data is 100 MiB" in told.why and why in told.why


def test_what_is_asked_for_may_take_all_that_is_free_and_no_more(monkeypatch):
    assert decided(monkeypatch, 100 * MIB, 0, residence="device").effective == "device"
    assert decided(monkeypatch, 0, 100 * MIB, residence="pinned").effective == "pinned"
    assert decided(monkeypatch, 400 * MIB, 400 * MIB, residence="host").effective == "host"
    with pytest.raises(DoesNotFit, match=r"the data is 100 MiB, and 99\.0? ?MiB|the data is 100 MiB, and 99 MiB"):
        decided(monkeypatch, 99 * MIB, 99 << 30, residence="device")
    with pytest.raises(DoesNotFit, match="free on the host do not hold it"):
        decided(monkeypatch, 99 << 30, 99 * MIB, residence="pinned")


def test_the_share_can_be_set(monkeypatch):
    assert decided(monkeypatch, 200 * MIB, 0, memory_share=0.5).effective == "device"
    assert decided(monkeypatch, 200 * MIB, 0, memory_share=0.4).effective == "host"


def test_other_data_sets_are_behind_a_loader_whatever_was_asked():
    class Made(Dataset):
        pass

    told = decide_residence(Made(), CARD, DataConfig(residence="device"))
    assert (told.requested, told.effective) == ("device", "loader") and "Made is no `Arrays`" in told.why


def test_rows_are_copied_on_the_host():
    data = Arrays(x=torch.arange(6).reshape(3, 2))
    batch = Resident(data, "host", torch.device("cpu")).take(torch.tensor([2, 0]))
    assert batch["x"].tolist() == [[4, 5], [0, 1]]
    batch["x"].fill_(-1)
    assert data.tensors[0].min() == 0


@pytest.mark.parametrize(
    ("said", "config"),
    [
        ("config.data.residence = 'disk'", {"residence": "disk"}),
        ("config.data.workers = -1", {"workers": -1}),
        ("config.data.memory_share = 0", {"memory_share": 0}),
        ("config.data.prefetch = 0", {"prefetch": 0}),
    ],
)
def test_settings_that_cannot_be_meant_are_said(said, config):
    with pytest.raises(UsageError) as caught:
        DataConfig(**config)
    assert caught.value.problem.startswith(said)


SCRIPT = """
    import torch
    from brimful.train.data.arrays import Arrays
    from brimful.train.data.epoch_sampler import EpochSampler, Position
    from brimful.train.data.pipeline import DataConfig, DataPipeline

    card = torch.device("cuda")
    data = Arrays(torch.zeros(4096, 1024, dtype=torch.uint8), torch.zeros(4096, dtype=torch.int64))
    for residence in ("device", "pinned", "host"):
        before = torch.cuda.memory_allocated()
        sampler = EpochSampler(4096, seed=0, micro_batch=64, accumulation=1)
        pipeline = DataPipeline(data, sampler, card, DataConfig(residence=residence), 0)
        held = torch.cuda.memory_allocated() - before
        step = next(iter(pipeline.steps(Position())))
        images, labels = step.load(0, 0, 64)
        print(pipeline.residence.effective, held, images.device.type, tuple(images.shape), images.dtype, labels.device.type)
        del pipeline, step, images, labels
"""


def test_on_an_imaginary_card_only_what_lives_on_the_device_takes_its_memory(tmp_path):
    told = run_trial(tmp_path, SCRIPT, device="imaginary", card=IMAGINARY)
    assert told.exit_code == 0, told.stderr
    size = 4096 * 1024 + 4096 * 8
    assert told.stdout.splitlines() == [
        f"{residence} {held} cuda (64, 1024) torch.uint8 cuda"
        for residence, held in (("device", size), ("pinned", 0), ("host", 0))
    ]
