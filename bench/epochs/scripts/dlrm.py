"""A recommender after DLRM on requests of 50 to 800 candidates: dense features, and of each of
eight tables a bag of 1 to 30 rows.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

TABLES, ROWS, DENSE = 8, 20000, 13


class Requests(Dataset):
    def __init__(self, count):
        source = torch.Generator().manual_seed(1)
        self.counts = torch.randint(50, 801, (count,), generator=source).tolist()

    def __len__(self):
        return len(self.counts)

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        count = self.counts[index]
        lengths = torch.randint(1, 31, (TABLES, count), generator=source)
        bags = [torch.randint(0, ROWS, (int(n),), generator=source) for n in lengths.sum(1)]
        return torch.rand(count, DENSE, generator=source), bags, lengths


def collate(samples):
    """Dense features; for each table the rows of all bags and where each bag begins; clicks."""
    dense, bags, lengths = zip(*samples, strict=True)
    dense, lengths = torch.cat(dense), torch.cat(lengths, 1)
    rows = [torch.cat(of_table) for of_table in zip(*bags, strict=True)]
    clicks = (dense.sum(1) > DENSE / 2).float()
    return dense, rows, list(lengths.cumsum(1) - lengths), clicks


class DLRM(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, width, mode="sum") for _ in range(TABLES))
        self.bottom = nn.Sequential(
            nn.Linear(DENSE, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width)
        )
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU()
        )
        self.head = nn.Linear(512, 1)
        self.register_buffer("pairs", torch.tril_indices(TABLES + 1, TABLES + 1, -1))

    def forward(self, dense, rows, begins):
        dense = self.bottom(dense)
        bags = [table(*of) for table, *of in zip(self.tables, rows, begins, strict=True)]
        features = torch.stack([dense, *bags], 1)
        products = features @ features.transpose(1, 2)
        products = products[:, self.pairs[0], self.pairs[1]]
        return self.head(self.top(torch.cat([dense, products], 1))).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(
        Requests(args.samples), args.batch_size, shuffle=True, collate_fn=collate, drop_last=True
    )
    model = DLRM().cuda()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    for dense, rows, begins, clicks in loader:
        rows, begins = ([part.cuda() for part in parts] for parts in (rows, begins))
        scores = model(dense.cuda(), rows, begins)
        loss = F.binary_cross_entropy_with_logits(scores, clicks.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
