"""A graph isomorphism network on graphs of 50 to 500 nodes."""

import argparse

import torch
from graphs import Graphs, loader_of
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )

    def forward(self, nodes, edges):
        senders, receivers = edges
        received = torch.zeros_like(nodes).index_add(0, receivers, nodes[senders])
        return self.mlp((1 + self.epsilon) * nodes + received)


class Model(nn.Module):
    def __init__(self, features, width=256, layers=5):
        super().__init__()
        self.first = nn.Linear(features, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, nodes, edges, graph_of, count):
        states = self.first(nodes)
        for layer in self.layers:
            states = layer(states, edges)
        pooled = states.new_zeros(count, states.size(1)).index_add(0, graph_of, states)
        return self.head(pooled)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = loader_of(Graphs(args.samples, 50, 500, features=32), args.batch_size)
    model = Model(features=32).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in loader:
        nodes, edges, graph_of, labels = (part.cuda() for part in batch)
        loss = F.cross_entropy(model(nodes, edges, graph_of, len(labels)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
