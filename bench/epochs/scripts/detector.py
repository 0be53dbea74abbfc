"""A one-stage detector on images with sides of 128 to 384 pixels, padded batch by batch; its loss
of boxes is where there are boxes."""

from functools import partial

import torch
from images import on_card, padded, scene
from shared import flags, loader_of, train
from torch import nn
from torch.nn import functional as F

CLASSES, STRIDE = 10, 16


def block(channels, out, stride):
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(True)
    )


class Detector(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        stages = []
        for channels, out in zip((3, *widths), widths, strict=False):
            stages += [block(channels, out, 2), block(out, out, 1)]
        self.backbone = nn.Sequential(*stages)
        self.classes = nn.Conv2d(widths[-1], CLASSES, 3, 1, 1)
        self.boxes = nn.Conv2d(widths[-1], 4, 3, 1, 1)

    def forward(self, images):
        features = self.backbone(images)
        scores, sides = self.classes(features), self.boxes(features)
        return scores.flatten(2).transpose(1, 2), sides.flatten(2).transpose(1, 2)


def points_of(images):
    height, width = images.shape[2] // STRIDE, images.shape[3] // STRIDE
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return (torch.stack([columns, rows], -1).reshape(-1, 2) * STRIDE + STRIDE // 2).to(images)


def loss_of(model, images, targets):
    images, targets = on_card(images, targets)
    points, total = points_of(images), 0.0
    for scores, sides, target in zip(*model(images), targets, strict=True):
        boxes = target["boxes"]
        to_sides = torch.cat([points[:, None] - boxes[:, :2], boxes[:, 2:] - points[:, None]], -1)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1).expand(len(points), -1)
        areas = areas.masked_fill(to_sides.amin(-1) <= 0, float("inf"))
        smallest, matched = areas.min(1)
        inside = smallest.isfinite()
        wanted = F.one_hot(target["labels"][matched], CLASSES) * inside[:, None]
        total += F.binary_cross_entropy_with_logits(scores, wanted.float(), reduction="sum")
        theirs = to_sides[torch.arange(len(points), device=points.device), matched]
        total += F.smooth_l1_loss(sides[inside], theirs[inside].log(), reduction="sum")
    return total / len(targets)


args = flags(1600)
make = partial(scene, smallest=128, largest=384, most=12, classes=CLASSES)
loader = loader_of(args, make, [], padded)
model = Detector().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
train(model, optimizer, loader, loss_of, clip=10.0)
