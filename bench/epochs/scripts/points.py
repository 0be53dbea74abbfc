"""A PointNet on clouds of 200 to 1200 points, put side by side: the largest of each feature over a
cloud.
"""

import argparse
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES = 10


class Clouds(Dataset):
    def __init__(self, count):
        source = torch.Generator().manual_seed(1)
        self.counts = torch.randint(200, 1201, (count,), generator=source).tolist()

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        return torch.rand(self.counts[index], 3, generator=source), index % CLASSES


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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(
        Clouds(args.samples), args.batch_size, shuffle=True, collate_fn=collate, drop_last=True
    )
    model = PointNet().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in loader:
        points, cloud_of, labels = (part.cuda() for part in batch)
        loss = F.cross_entropy(model(points, cloud_of, len(labels)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
