"""torch_geometric: a graph isomorphism network on batches of graphs whose numbers of atoms and
bonds vary.
"""

import argparse

import torch
import torch.nn.functional as F
from torch.nn import BatchNorm1d, Linear, ReLU, Sequential
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, global_add_pool


def graphs(count, features, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        atoms = int(torch.randint(10, 60, (1,), generator=generator))
        bonds = int(torch.randint(atoms, 3 * atoms, (1,), generator=generator))
        made.append(
            Data(
                x=torch.randn(atoms, features, generator=generator),
                edge_index=torch.randint(0, atoms, (2, bonds), generator=generator),
                y=torch.randint(0, classes, (1,), generator=generator),
            )
        )
    return made


class GIN(torch.nn.Module):
    def __init__(self, features, hidden, classes, layers):
        super().__init__()
        self.convs, self.norms = torch.nn.ModuleList(), torch.nn.ModuleList()
        for layer in range(layers):
            inner = Sequential(
                Linear(features if layer == 0 else hidden, hidden), ReLU(), Linear(hidden, hidden)
            )
            self.convs.append(GINConv(inner, train_eps=True))
            self.norms.append(BatchNorm1d(hidden))
        self.lin1, self.lin2 = Linear(hidden, hidden), Linear(hidden, classes)

    def forward(self, x, edge_index, batch, size):
        for conv, norm in zip(self.convs, self.norms):
            x = norm(conv(x, edge_index).relu())
        x = global_add_pool(x, batch, size)
        x = F.dropout(self.lin1(x).relu(), p=0.5, training=self.training)
        return self.lin2(x)


def train(model, loader, optimizer, device):
    model.train()
    total = 0.0
    for data in loader:
        data = data.to(device)
        optimizer.zero_grad()
        out = model(data.x, data.edge_index, data.batch, data.num_graphs)
        loss = F.cross_entropy(out, data.y)
        loss.backward()
        optimizer.step()
        total += loss.item() * data.num_graphs
    return total / len(loader.dataset)


@torch.no_grad()
def test(model, loader, device):
    model.eval()
    correct = 0
    for data in loader:
        data = data.to(device)
        predicted = model(data.x, data.edge_index, data.batch, data.num_graphs).argmax(dim=-1)
        correct += int((predicted == data.y).sum())
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--hidden_channels", type=int, default=256)
    parser.add_argument("--num_layers", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--graphs", type=int, default=4000)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader = DataLoader(graphs(args.graphs, 64, 10, seed=0), args.batch_size, shuffle=True)
    test_loader = DataLoader(graphs(400, 64, 10, seed=1), args.batch_size)
    model = GIN(64, args.hidden_channels, 10, args.num_layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(1, args.epochs + 1):
        loss = train(model, train_loader, optimizer, device)
        print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Test: {test(model, test_loader, device):.4f}")


if __name__ == "__main__":
    main()
