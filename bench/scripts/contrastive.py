"""Contrastive learning in pairs: every sample of a batch meets every other one, so memory grows
with its square.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, features, hidden, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.projector = nn.Linear(hidden, width)

    def forward(self, inputs):
        return F.normalize(self.projector(self.body(inputs)), dim=1)


def nt_xent(first, second, temperature=0.1):
    """SimCLR's loss over the 2N x 2N similarities."""
    both = torch.cat([first, second])
    similarities = both @ both.t() / temperature
    itself = torch.eye(len(both), dtype=torch.bool, device=both.device)
    similarities = similarities.masked_fill(itself, float("-inf"))
    targets = torch.arange(len(both), device=both.device).roll(len(first))
    return F.cross_entropy(similarities, targets)


def margin(embeddings, labels, distance=0.5):
    """Every pair: alike ones near, others apart by a margin."""
    distances = torch.cdist(embeddings, embeddings)
    alike = labels[:, None] == labels[None, :]
    return torch.where(alike, distances, F.relu(distance - distances)).square().mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=100_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda"

    data = TensorDataset(torch.randn(args.samples, 128), torch.randint(0, 20, (args.samples,)))
    loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
    model = Encoder(128, 1024, 128).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    for epoch in range(args.epochs):
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            views = [model(inputs + 0.1 * torch.randn_like(inputs)) for _ in range(2)]
            loss = nt_xent(*views) + margin(views[0], labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
