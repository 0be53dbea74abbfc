"""Sequences of token ids of different lengths, padded batch by batch."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    """`count` sequences of `shortest` to `longest` tokens, each with a label."""

    def __init__(self, count, shortest, longest, vocabulary):
        source = torch.Generator().manual_seed(1)
        self.lengths = torch.randint(shortest, longest + 1, (count,), generator=source).tolist()
        self.vocabulary = vocabulary

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        tokens = torch.randint(1, self.vocabulary, (self.lengths[index],), generator=source)
        return tokens, index % 2


def collate(samples):
    tokens, labels = map(list, zip(*samples, strict=True))
    return pad_sequence(tokens, batch_first=True), torch.tensor(labels)


class Pairs(Dataset):
    """`count` pairs of token sequences, each of lengths between a shortest and a longest."""

    def __init__(self, count, sources, targets, vocabulary):
        source = torch.Generator().manual_seed(1)
        self.lengths = [
            torch.randint(shortest, longest + 1, (count,), generator=source).tolist()
            for shortest, longest in (sources, targets)
        ]
        self.vocabulary = vocabulary

    def __len__(self):
        return len(self.lengths[0])

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        return tuple(
            torch.randint(1, self.vocabulary, (lengths[index],), generator=source)
            for lengths in self.lengths
        )


def pairs_padded(samples):
    sources, targets = map(list, zip(*samples, strict=True))
    return pad_sequence(sources, batch_first=True), pad_sequence(targets, batch_first=True)


def loader_of(dataset, batch_size, **more):
    return DataLoader(dataset, batch_size, shuffle=True, collate_fn=collate, drop_last=True, **more)
