"""Data sets that several tests load."""

import numpy
import torch
from torch.utils.data import Dataset

from brimful_train.config import DataConfig

CPU = torch.device("cpu")
ALONE = DataConfig(workers=0)


class Noisy(Dataset):
    """Each sample is its index and a number drawn for it."""

    def __init__(self, length, fails_at=None):
        self.length, self.fails_at = length, fails_at

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.fails_at:
            raise ValueError("a broken image")
        return torch.tensor(index), torch.rand(())


class Texts(Dataset):
    sizes = numpy.array([3, 1, 4, 1, 5, 9, 2, 6])

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((int(self.sizes[index]),), index)

    def collate(self, samples):
        return {
            "tokens": torch.nn.utils.rnn.pad_sequence(samples, batch_first=True, padding_value=-1)
        }
