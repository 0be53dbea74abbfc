"""A one-stage detector on images of many sizes: padded batches, targets of many boxes, losses where
the anchors are.
"""

import argparse
import math
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES, STRIDE = 20, 16


class Scenes(Dataset):
    """Random images of random sizes, with one to thirty boxes."""

    def __init__(self, length, smallest, largest):
        self.length, self.smallest, self.largest = length, smallest, largest

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        rng = random.Random(index)
        height, width = (rng.randrange(self.smallest, self.largest + 1, 8) for _ in range(2))
        boxes = torch.rand(rng.randint(1, 30), 4)
        boxes[:, 2:] = boxes[:, :2] + (1 - boxes[:, :2]) * boxes[:, 2:]
        labels = torch.randint(CLASSES, (len(boxes),))
        return torch.rand(3, height, width), {
            "boxes": boxes * torch.tensor([width, height] * 2),
            "labels": labels,
        }


def collate(samples):
    images, targets = zip(*samples)
    height = math.ceil(max(image.shape[1] for image in images) / 32) * 32
    width = math.ceil(max(image.shape[2] for image in images) / 32) * 32
    batch = torch.zeros(len(images), 3, height, width)
    for padded, image in zip(batch, images):
        padded[:, : image.shape[1], : image.shape[2]] = image
    return batch, targets


class Detector(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        stages, channels = [], 3
        for out in widths:
            stages += [
                nn.Conv2d(channels, out, 3, 2, 1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
            ]
            stages += [
                nn.Conv2d(out, out, 3, 1, 1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
            ]
            channels = out
        self.backbone = nn.Sequential(*stages)
        self.head = nn.Sequential(
            nn.Conv2d(channels, 256, 3, 1, 1), nn.GroupNorm(32, 256), nn.ReLU(inplace=True)
        )
        self.classes, self.boxes = nn.Conv2d(256, CLASSES, 3, 1, 1), nn.Conv2d(256, 4, 3, 1, 1)

    def forward(self, images):
        features = self.head(self.backbone(images))
        return self.classes(features).flatten(2).transpose(1, 2), self.boxes(features).flatten(
            2
        ).transpose(1, 2).exp()


def points_of(images):
    height, width = images.shape[2] // STRIDE, images.shape[3] // STRIDE
    ys, xs = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return (torch.stack([xs, ys], -1).reshape(-1, 2) * STRIDE + STRIDE // 2).to(images)


def match(points, boxes):
    """For every point the smallest box that holds it, and whether there is one."""
    inside = ((points[:, None] > boxes[None, :, :2]) & (points[:, None] < boxes[None, :, 2:])).all(
        -1
    )
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    areas = torch.where(inside, areas, torch.full_like(areas, float("inf")))
    smallest, matched = areas.min(1)
    return matched, smallest.isfinite()


def iou_loss(offsets, points, boxes):
    predicted = torch.cat([points - offsets[:, :2], points + offsets[:, 2:]], 1)
    overlap = (
        torch.minimum(predicted[:, 2:], boxes[:, 2:])
        - torch.maximum(predicted[:, :2], boxes[:, :2])
    ).clamp(min=0)
    areas = [(b[:, 2:] - b[:, :2]).prod(1) for b in (predicted, boxes)]
    intersection = overlap.prod(1)
    return 1 - intersection / (areas[0] + areas[1] - intersection + 1e-6)


def loss_of(model, images, targets):
    logits, offsets = model(images)
    points = points_of(images)
    total_class = total_box = 0.0
    for scores, distances, target in zip(logits, offsets, targets):
        matched, positive = match(points, target["boxes"])
        wanted = F.one_hot(target["labels"][matched], CLASSES) * positive[:, None]
        total_class = total_class + F.binary_cross_entropy_with_logits(
            scores, wanted.to(scores), reduction="sum"
        )
        losses = iou_loss(distances[positive], points[positive], target["boxes"][matched][positive])
        total_box = total_box + losses.sum()
    return (total_class + total_box) / len(targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--smallest", type=int, default=320)
    parser.add_argument("--largest", type=int, default=640)
    parser.add_argument("--samples", type=int, default=256)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda")

    train = DataLoader(
        Scenes(args.samples, args.smallest, args.largest),
        args.batch_size,
        shuffle=True,
        collate_fn=collate,
        drop_last=True,
    )
    test = DataLoader(Scenes(64, args.smallest, args.largest), args.batch_size, collate_fn=collate)
    model = Detector().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    for epoch in range(args.epochs):
        model.train()
        for images, targets in train:
            images = images.to(device)
            targets = [
                {name: value.to(device) for name, value in target.items()} for target in targets
            ]
            loss = loss_of(model, images, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            kept = 0
            for images, _ in test:
                logits, _ = model(images.to(device))
                scores, _ = logits.sigmoid().max(-1)
                kept += scores.topk(100, dim=1).values.gt(0.05).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, {kept} detections")


if __name__ == "__main__":
    main()
