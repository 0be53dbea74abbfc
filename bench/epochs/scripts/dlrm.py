"""A recommender after DLRM on requests of 50 to 800 candidates: dense features, and of each of
eight tables a bag of 1 to 30 rows.
"""

import torch
from shared import flags, loader_of, train
from torch import nn
from torch.nn import functional as F

TABLES, ROWS, DENSE = 8, 20000, 13


def request(number, count):
    source = torch.Generator().manual_seed(number)
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


def loss_of(model, dense, rows, begins, clicks):
    rows, begins = ([part.cuda() for part in parts] for parts in (rows, begins))
    return F.binary_cross_entropy_with_logits(model(dense.cuda(), rows, begins), clicks.cuda())


args = flags(4000)
model = DLRM().cuda()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
train(model, optimizer, loader_of(args, request, [(50, 800)], collate), loss_of)
