"""A graph attention network on graphs of 30 to 300 nodes."""

import argparse

import torch
from graphs import Graphs, loader_of
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, width, bias=False)
        self.sends = nn.Parameter(torch.randn(heads, width // heads) * 0.1)
        self.receives = nn.Parameter(torch.randn(heads, width // heads) * 0.1)

    def forward(self, nodes, edges):
        senders, receivers = edges
        states = self.project(nodes).unflatten(1, (self.heads, -1))
        sends, receives = (states * self.sends).sum(-1), (states * self.receives).sum(-1)
        scores = F.leaky_relu(sends[senders] + receives[receivers], 0.2)
        index = receivers[:, None].expand_as(scores)
        largest = torch.full_like(sends, -1e9).scatter_reduce(0, index, scores.detach(), "amax")
        weights = (scores - largest[receivers]).exp()
        totals = torch.zeros_like(sends).index_add(0, receivers, weights)
        weights = F.dropout(weights / totals[receivers], 0.1, self.training)
        messages = weights[..., None] * states[senders]
        received = torch.zeros_like(states).index_add(0, receivers, messages)
        return F.elu(received.flatten(1)) + nodes


class Model(nn.Module):
    def __init__(self, features, width=256, layers=4):
        super().__init__()
        self.first = nn.Linear(features, width)
        self.layers = nn.ModuleList(Layer(width, 8) for _ in range(layers))
        self.head = nn.Linear(width, 2)

    def forward(self, nodes, edges, graph_of, count):
        states = self.first(nodes)
        for layer in self.layers:
            states = layer(states, edges)
        pooled = states.new_zeros(count, states.size(1)).index_add(0, graph_of, states)
        return self.head(pooled / graph_of.bincount(minlength=count)[:, None])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = loader_of(Graphs(args.samples, 30, 300, features=32, degree=8), args.batch_size)
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
