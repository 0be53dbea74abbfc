"""Images of different sizes with boxes on them."""

import random

import torch


def scene(number, smallest, largest, most, classes):
    """An image of one colour with one to `most` boxes, each side `smallest` to `largest` pixels."""
    source = random.Random(number)
    height, width = (source.randrange(smallest, largest + 1, 8) for _ in range(2))
    boxes, labels = [], []
    for _ in range(source.randint(1, most)):
        left, top = source.uniform(0, 0.7 * width), source.uniform(0, 0.7 * height)
        right, bottom = source.uniform(left + 8, width), source.uniform(top + 8, height)
        boxes.append([left, top, right, bottom])
        labels.append(source.randrange(1, classes))
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


def on_card(images, targets):
    """A batch of either."""
    is_padded = isinstance(images, torch.Tensor)
    images = images.cuda() if is_padded else [image.cuda() for image in images]
    return images, [{name: value.cuda() for name, value in each.items()} for each in targets]
