"""A PointNet on clouds of 200 to 1200 points, put side by side: the largest of each feature over a
cloud.
"""

from itertools import pairwise

import torch
from shared import flags, loader_of, train
from torch import nn
from torch.nn import functional as F

CLASSES = 10


def cloud(number, points):
    source = torch.Generator().manual_seed(number)
    return torch.rand(points, 3, generator=source), number % CLASSES


def collate(samples):
    clouds, labels = zip(*samples, strict=True)
    counts = torch.tensor([len(cloud) for cloud in clouds])
    return (
        torch.cat(clouds),
        torch.arange(len(clouds)).repeat_interleave(counts),
        torch.tensor(labels),
    )


class PointNet(nn.Module):
    def __init__(self, widths=(3, 64, 64, 64, 128, 1024)):
        super().__init__()
        layers = []
        for width, out in pairwise(widths):
            layers += [nn.Linear(width, out), nn.BatchNorm1d(out), nn.ReLU()]
        self.of_points = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(widths[-1], 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, CLASSES)
        )

    def forward(self, points, cloud_of, count):
        features = self.of_points(points)
        index = cloud_of[:, None].expand_as(features)
        pooled = features.new_zeros(count, features.size(1))
        return self.head(pooled.scatter_reduce(0, index, features, "amax"))


def loss_of(model, *batch):
    points, cloud_of, labels = (part.cuda() for part in batch)
    return F.cross_entropy(model(points, cloud_of, len(labels)), labels)


args = flags(2500)
model = PointNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
train(model, optimizer, loader_of(args, cloud, [(200, 1200)], collate), loss_of)
