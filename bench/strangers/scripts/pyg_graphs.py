"""torch_geometric: classification of graphs, with TopKPooling, after its own example
proteins_topk_pool.py.
"""

import argparse

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GraphConv, TopKPooling, global_max_pool, global_mean_pool

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=60)
args = parser.parse_args()


def graph(index):
    torch.manual_seed(index)
    nodes = int(torch.randint(10, 60, ()))
    return Data(
        x=torch.randn(nodes, 16),
        edge_index=torch.randint(0, nodes, (2, 4 * nodes)),
        y=torch.tensor([index % 2]),
    )


graphs = [graph(index) for index in range(600)]
train_loader = DataLoader(graphs[:500], batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(graphs[500:], batch_size=args.batch_size)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList(
            [GraphConv(16, 128), GraphConv(128, 128), GraphConv(128, 128)]
        )
        self.pools = torch.nn.ModuleList([TopKPooling(128, ratio=0.8) for _ in range(3)])
        self.lin1, self.lin2 = torch.nn.Linear(256, 128), torch.nn.Linear(128, 2)

    def forward(self, data):
        x, edge_index, batch = data.x, data.edge_index, data.batch
        parts = []
        for conv, pool in zip(self.convs, self.pools):
            x = F.relu(conv(x, edge_index))
            x, edge_index, _, batch, _, _ = pool(x, edge_index, None, batch)
            parts.append(torch.cat([global_max_pool(x, batch), global_mean_pool(x, batch)], dim=1))
        x = F.dropout(F.relu(self.lin1(sum(parts))), p=0.5, training=self.training)
        return F.log_softmax(self.lin2(x), dim=-1)


device = torch.device("cuda")
model = Net().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.0005)
for epoch in range(1, 4):
    model.train()
    for data in train_loader:
        data = data.to(device)
        optimizer.zero_grad()
        F.nll_loss(model(data), data.y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum(
            int((model(d.to(device)).argmax(dim=1) == d.y.to(device)).sum()) for d in test_loader
        )
    print(f"epoch {epoch}: {right / len(test_loader.dataset):.3f}")
