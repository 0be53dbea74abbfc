"""nn.DataParallel over all cards there are, as older training scripts have it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, inputs):
        return self.layers(inputs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=4096)
    args = parser.parse_args()
    print("Let's use", torch.cuda.device_count(), "GPUs!")

    data = TensorDataset(torch.randn(8192, 1024), torch.randint(0, 100, (8192,)))
    loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True, pin_memory=True)
    held_out = DataLoader(
        TensorDataset(torch.randn(1024, 1024), torch.randint(0, 100, (1024,))), args.batch_size
    )
    model = nn.DataParallel(Classifier(1024, args.hidden, 100)).cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        model.train()
        for inputs, targets in loader:
            inputs, targets = inputs.cuda(non_blocking=True), targets.cuda(non_blocking=True)
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            correct = sum(
                (model(inputs.cuda()).argmax(1).cpu() == targets).sum().item()
                for inputs, targets in held_out
            )
        print(f"epoch {epoch}: loss {loss.item():.4f} accuracy {correct / 1024:.4f}")
    torch.save(model.module.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
