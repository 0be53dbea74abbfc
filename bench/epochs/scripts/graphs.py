"""Graphs of different sizes, put side by side as one graph."""

import torch
from torch.utils.data import DataLoader, Dataset


class Graphs(Dataset):
    """`count` graphs of `smallest` to `largest` nodes, with some edges a node and a label."""

    def __init__(self, count, smallest, largest, features, degree=4):
        source = torch.Generator().manual_seed(1)
        self.nodes = torch.randint(smallest, largest + 1, (count,), generator=source).tolist()
        self.features, self.degree = features, degree

    def __len__(self):
        return len(self.nodes)

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        nodes = self.nodes[index]
        count = int(nodes * self.degree * (0.5 + torch.rand((), generator=source)))
        edges = torch.randint(0, nodes, (2, count), generator=source)
        return torch.rand(nodes, self.features, generator=source), edges, index % 2


def collate(samples):
    """The nodes, the edges between them, the graph that each node is of, and the labels."""
    nodes, edges, labels = zip(*samples, strict=True)
    counts = torch.tensor([len(of_graph) for of_graph in nodes])
    begins = counts.cumsum(0) - counts
    edges = torch.cat([pair + begin for pair, begin in zip(edges, begins, strict=True)], 1)
    graph_of = torch.arange(len(counts)).repeat_interleave(counts)
    return torch.cat(nodes), edges, graph_of, torch.tensor(labels)


def loader_of(dataset, batch_size):
    return DataLoader(dataset, batch_size, shuffle=True, collate_fn=collate, drop_last=True)
