"""A graph network on batches of small graphs of uneven size, as PyTorch Geometric gives them."""

import argparse

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_add_pool


def graph():
    nodes = int(torch.randint(8, 60, ()))
    edges = torch.randint(0, nodes, (2, 4 * nodes))
    kinds, bonds = torch.randint(0, 30, (nodes,)), torch.randint(0, 6, (4 * nodes,))
    return Data(x=kinds, edge_index=edges, edge_attr=bonds, y=torch.randn(1))


class Network(nn.Module):
    def __init__(self, width=300, layers=5):
        super().__init__()
        self.nodes, self.edges = nn.Embedding(30, width), nn.Embedding(6, width)
        self.layers = nn.ModuleList(GINEConv(self.rise(width)) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    @staticmethod
    def rise(width):
        return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, batch):
        x, edges = self.nodes(batch.x), self.edges(batch.edge_attr)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + norm(layer(x, batch.edge_index, edges)).relu()
        return self.head(global_add_pool(x, batch.batch)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    graphs = [graph() for _ in range(20_000)]
    train = DataLoader(graphs[2_000:], args.batch_size, shuffle=True)
    held_out = DataLoader(graphs[:2_000], args.batch_size)
    model = Network().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(10):
        model.train()
        for batch in train:
            batch = batch.to("cuda")
            loss = nn.functional.mse_loss(model(batch), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            error = sum(nn.functional.l1_loss(model(b.to("cuda")), b.y.cuda()) for b in held_out)
        print(f"error {error.item():.3f}")


if __name__ == "__main__":
    main()
