"""What a Task refuses before anything is built."""

import pytest
from torch import nn
from torch.utils.data import IterableDataset

from brimful.errors import UsageError
from brimful_train import Task


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize(
    "data", [{"train_data": Endless()}, {"train_data": [1], "eval_data": Endless()}]
)
def test_a_data_set_that_has_no_indices_is_refused(data):
    with pytest.raises(UsageError, match="Endless is an IterableDataset") as caught:
        Task("stream", nn.Linear(1, 1), lambda model, batch: model(batch).mean(), **data)
    assert "__getitem__" in caught.value.suggestion
