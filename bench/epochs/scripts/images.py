"""Images of different sizes with boxes on them."""

import random

import torch
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    """`count` images of one colour, each side of `smallest` to `largest` pixels, each with one to
    `most` boxes."""

    def __init__(self, count, smallest, largest, most, classes):
        self.count, self.smallest, self.largest = count, smallest, largest
        self.most, self.classes = most, classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        source = random.Random(index)
        height, width = (source.randrange(self.smallest, self.largest + 1, 8) for _ in range(2))
        boxes, labels = [], []
        for _ in range(source.randint(1, self.most)):
            left, top = source.uniform(0, 0.7 * width), source.uniform(0, 0.7 * height)
            right, bottom = source.uniform(left + 8, width), source.uniform(top + 8, height)
            boxes.append([left, top, right, bottom])
            labels.append(source.randrange(1, self.classes))
        target = {"boxes": torch.tensor(boxes), "labels": torch.tensor(labels)}
        return torch.full((3, height, width), source.random()), target


def collate(samples):
    return tuple(zip(*samples, strict=True))


def padded(samples):
    """The images as one tensor, whose sides are multiples of 32."""
    images, targets = collate(samples)
    height, width = (-(-max(image.shape[side] for image in images) // 32) * 32 for side in (1, 2))
    batch = torch.zeros(len(images), 3, height, width)
    for place, image in zip(batch, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return batch, targets


def loader_of(dataset, batch_size, collate_fn):
    return DataLoader(dataset, batch_size, shuffle=True, collate_fn=collate_fn, drop_last=True)
