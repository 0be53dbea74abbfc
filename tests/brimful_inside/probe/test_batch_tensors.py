import types

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from brimful_inside.probe import batch_tensors


def test_shapes_are_found_in_whatever_holds_the_tensors():
    holder = types.SimpleNamespace(x=torch.zeros(2, 3))
    batch = [{"a": torch.zeros(4, 5), "b": (torch.zeros(4), np.zeros((4, 2)))}, holder, "text"]
    assert batch_tensors.shapes_of(batch) == [[4, 5], [4], [4, 2], [2, 3]]
    for given, first in ((batch, 4), (["a", "b", "c"], 3), (7, None)):
        assert batch_tensors.first_dimension(given) == first


@pytest.mark.parametrize(
    "make",
    [
        lambda g: torch.randn(64, 3, 32, 32, generator=g),
        lambda g: torch.randint(0, 9, (5, 7), generator=g),
        lambda g: torch.randn(8, 8, generator=g).bfloat16(),
        lambda g: torch.randn(8, generator=g) > 0,
        lambda g: torch.randn(100, 40, generator=g).t(),
        lambda g: torch.randn(8, dtype=torch.complex64, generator=g),
        lambda g: torch.randn(64, 6, generator=g).numpy(),
        lambda g: [str(float(torch.randn((), generator=g)))],
    ],
)
def test_equal_batches_have_equal_checksums_and_others_have_not(make):
    def checksum(seed):
        return batch_tensors.checksum_of(make(torch.Generator().manual_seed(seed)))

    assert checksum(1) == checksum(1) != checksum(2) and len(checksum(1)) == 8


def test_no_checksum_where_the_values_are_not_on_the_host():
    assert batch_tensors.checksum_of(torch.zeros(3, device="meta")) is None
    assert batch_tensors.checksum_of([]) is None


class Contiguous(TorchFunctionMode):
    """Counts the values that are copied."""

    most = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") == "contiguous":
            self.most = max(self.most, result.numel())
        return result


def test_a_checksum_reads_few_values():
    with Contiguous() as seen:
        batch_tensors.checksum_of(torch.zeros(1024, 1024))
    assert 0 < seen.most <= batch_tensors.CHECKED_VALUES


def test_a_checksum_calls_nothing_of_a_tensors_own_class():
    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    values = torch.arange(12.0).reshape(3, 4).T
    assert batch_tensors.checksum_of([values.as_subclass(Own)]) == batch_tensors.checksum_of(
        [values]
    )


def test_a_copy_of_a_row_holds_that_row_alone_and_is_nobody_elses():
    rows = torch.arange(12.0).reshape(3, 4)
    sample = {"row": rows[1], "names": ["a"]}
    copied = batch_tensors.copy_of(sample)
    assert copied["row"].tolist() == [4, 5, 6, 7] and copied["names"] == ["a"]
    assert copied["row"].untyped_storage().nbytes() == 16
    copied["row"].zero_(), copied["names"].clear()
    assert rows[1].tolist() == [4, 5, 6, 7] and sample["names"] == ["a"]
