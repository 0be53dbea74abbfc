"""Arrays: samples and batches of them."""

from __future__ import annotations

import warnings

import numpy
import pytest
import torch
from torch.utils.data import default_collate

from brimful.errors import UsageError
from brimful.train.data.arrays import Arrays

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
