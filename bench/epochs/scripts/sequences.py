"""Sequences of token ids of different lengths, padded batch by batch."""

import torch
from torch.nn.utils.rnn import pad_sequence

VOCABULARY = 8000


def texts(number, *lengths):
    """Of one sample: a sequence of each length."""
    source = torch.Generator().manual_seed(number)
    return [torch.randint(1, VOCABULARY, (length,), generator=source) for length in lengths]


def padded(samples):
    """One tensor for each sequence of a sample, (batch, longest)."""
    return [pad_sequence(alike, batch_first=True) for alike in zip(*samples, strict=True)]


def labelled(number, length):
    return *texts(number, length), torch.tensor(number % 2)


def padded_with_labels(samples):
    sequences, labels = zip(*samples, strict=True)
    return pad_sequence(sequences, batch_first=True), torch.stack(labels)
