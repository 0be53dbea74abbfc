"""Arrays: samples and batches of them."""

import warnings

import numpy
import pytest
import torch
from torch.utils.data import Dataset, default_collate

from brimful.decide.loading import Host
from brimful.errors import DoesNotFit, UsageError
from brimful_train.config import DataConfig
from brimful_train.data.arrays import Arrays, Resident, decide_residence
from brimful_train.data.room import Room
from tests.brimful_inside.helper import CARD as CARD_OF_8_GIB
from tests.brimful_inside.helper import run_trial

TYPES = [
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "bool",
]


@pytest.mark.parametrize("dtype", TYPES)
def test_a_batch_is_what_collating_its_samples_gives(dtype):
    images = (
        numpy.random.default_rng(0)
        .integers(0, 2 if dtype == "bool" else 100, (7, 3, 2))
        .astype(dtype)
    )
    data = Arrays(images=images, labels=torch.arange(7))
    indices = [5, 0, 5, 6]
    batch, collated = data.take(numpy.array(indices)), default_collate([data[i] for i in indices])
    assert list(batch) == ["images", "labels"]
    for name in batch:
        assert batch[name].dtype == collated[name].dtype and torch.equal(
            batch[name], collated[name]
        )
    assert (batch["images"].numpy() == images[indices]).all()


def test_a_read_only_memmap_is_read_in_place_and_without_a_warning(tmp_path):
    numpy.save(tmp_path / "images.npy", numpy.arange(12, dtype=numpy.uint8).reshape(4, 3))
    mapped = numpy.load(tmp_path / "images.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = Arrays(mapped)
    assert data.tensors[0].data_ptr() == mapped.ctypes.data
    assert data.take([3, 0])[0].tolist() == [[9, 10, 11], [0, 1, 2]]


def test_a_change_in_place_of_a_batch_or_a_sample_does_not_reach_the_data():
    data = Arrays(x=torch.arange(6).reshape(3, 2))
    resident = Resident(data, "host", torch.device("cpu")).take(torch.tensor([2, 0]))
    assert resident["x"].tolist() == [[4, 5], [0, 1]]
    for tensor in (resident["x"], data.take([0, 1, 2])["x"], data[2]["x"]):
        tensor.fill_(-1)
    assert data.tensors[0].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_an_array_turned_around_is_taken_as_it_reads():
    assert Arrays(numpy.arange(4)[::-1]).take([0, 3])[0].tolist() == [3, 0]


def test_unnamed_arrays_give_tuples_and_the_end_of_the_data_ends_a_loop_over_it():
    data = Arrays(numpy.arange(6.0).reshape(3, 2), numpy.arange(3))
    assert isinstance(data.take([1]), tuple) and data.bytes == 6 * 8 + 3 * 8
    assert [type(sample) for sample in data] == [tuple] * 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Arrays(images=numpy.zeros((100, 2)), labels=numpy.zeros(99)),
            "images has 100, labels has 99",
        ),
        (lambda: Arrays(numpy.zeros(2), numpy.zeros(3)), "array 0 has 2, array 1 has 3"),
        (lambda: Arrays(texts=numpy.array(["a", "b"])), "texts has the type <U1"),
        (lambda: Arrays(numpy.array([None])), "array 0 has the type object"),
        (lambda: Arrays(labels=torch.tensor(3)), "labels is a single number"),
        (lambda: Arrays(), "0 unnamed and 0 named"),
        (lambda: Arrays(numpy.zeros(2), labels=numpy.zeros(2)), "1 unnamed and 1 named"),
    ],
)
def test_what_cannot_be_samples_is_refused(make, words):
    with pytest.raises(UsageError) as caught:
        make()
    assert words in caught.value.problem and caught.value.suggestion


CARD = torch.device("cuda", 0)
MIB = 1 << 20


def decided(free_device, free_host, ranks=1, size=100 * MIB, **config):
    room = Room(Host(free_host, 8, None, ranks, cards=ranks), free_device)
    return decide_residence(
        Arrays(torch.empty(size, dtype=torch.uint8)), CARD, DataConfig(**config), room
    )


@pytest.mark.parametrize(
    ("free_device", "free_host", "ranks", "lives", "why"),
    [
        (400, 400, 1, "device", "25% of 400 MiB free on the device hold it"),
        (399, 400, 1, "pinned", "25% of 400 MiB free on the host hold it"),
        (399, 400, 2, "host", "a copy for each of 2 ranks"),
        (399, 399, 1, "host", "25% of 399 MiB free on the host do not hold it"),
    ],
)
def test_data_lives_where_its_share_of_the_free_memory_holds_it(
    free_device, free_host, ranks, lives, why
):
    row = decided(free_device * MIB, free_host * MIB, ranks)
    assert row.requested is None and row.effective == lives
    assert "the data is 100 MiB" in row.why and why in row.why


@pytest.mark.parametrize(
    ("free_device", "free_host", "config", "lives"),
    [
        (100, 0, {"residence": "device"}, "device"),
        (0, 100, {"residence": "pinned"}, "pinned"),
        (400, 400, {"residence": "host"}, "host"),
        (200, 0, {"memory_share": 0.5}, "device"),
        (200, 0, {"memory_share": 0.4}, "host"),
    ],
)
def test_a_named_residence_may_take_all_that_is_free_and_the_share_can_be_set(
    free_device, free_host, config, lives
):
    assert decided(free_device * MIB, free_host * MIB, **config).effective == lives


@pytest.mark.parametrize(
    ("residence", "words"),
    [
        ("device", "the data is 100 MiB, and 99.0 MiB free on the device do not"),
        ("pinned", "free on the host do not hold it"),
    ],
)
def test_a_named_residence_without_room_is_refused(residence, words):
    free = {"device": (99 * MIB, 99 << 30), "pinned": (99 << 30, 99 * MIB)}[residence]
    with pytest.raises(DoesNotFit, match=words):
        decided(*free, residence=residence)


def test_other_data_sets_are_behind_a_loader_whatever_the_residence():
    class Made(Dataset):
        pass

    row = decide_residence(Made(), CARD, DataConfig(residence="device"), Room(Host(0, 8, None), 0))
    assert (row.requested, row.effective) == (
        "device",
        "loader",
    ) and "Made is no `Arrays`" in row.why


SCRIPT = """
    import torch
    from brimful_train.config import DataConfig
    from brimful_train.data.arrays import Arrays
    from brimful_train.data.epoch_sampler import EpochSampler, Position
    from brimful_train.data.pipeline import DataPipeline

    card = torch.device("cuda")
    data = Arrays(torch.zeros(4096, 1024, dtype=torch.uint8), torch.zeros(4096, dtype=torch.int64))
    for residence in ("device", "pinned", "host"):
        before = torch.cuda.memory_allocated()
        sampler = EpochSampler(4096, seed=0, micro_batch=64, accumulation=1)
        pipeline = DataPipeline(data, sampler, card, DataConfig(residence=residence), 0)
        held = torch.cuda.memory_allocated() - before
        step = next(iter(pipeline.steps(Position())))
        images, labels = step.load(0, 0, 64)
        devices = images.device.type, labels.device.type
        shape = tuple(images.shape)
        print(pipeline.residence.effective, held, devices[0], shape, images.dtype, devices[1])
        del pipeline, step, images, labels
"""


def test_on_an_imaginary_card_only_what_lives_on_the_device_takes_its_memory(tmp_path):
    trial = run_trial(tmp_path, SCRIPT, device="imaginary", card=CARD_OF_8_GIB, exit_code=0)
    size = 4096 * 1024 + 4096 * 8
    assert trial.stdout.splitlines() == [
        f"{residence} {held} cuda (64, 1024) torch.uint8 cuda"
        for residence, held in (("device", size), ("pinned", 0), ("host", 0))
    ]
