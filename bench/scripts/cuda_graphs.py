"""Whole-network capture with CUDA graphs, after PyTorch's notes on CUDA semantics: warm up, capture
a step, replay it.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def evaluate(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for inputs, targets in loader:
            predicted = model(inputs.cuda()).argmax(1)
            correct += (predicted == targets.cuda()).sum().item()
            total += len(targets)
    model.train()
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=640)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=8192)
    args = parser.parse_args()
    torch.manual_seed(0)

    features, hidden, classes = 1024, 2048, 100
    train_set = TensorDataset(
        torch.randn(args.samples, features), torch.randint(0, classes, (args.samples,))
    )
    test_set = TensorDataset(torch.randn(1000, features), torch.randint(0, classes, (1000,)))
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, pin_memory=True)
    test_loader = DataLoader(test_set, args.batch_size)

    model = nn.Sequential(
        nn.Linear(features, hidden),
        nn.Dropout(p=0.2),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.Dropout(p=0.1),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    ).cuda()
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)

    static_input = torch.randn(args.batch_size, features, device="cuda")
    static_target = torch.randint(0, classes, (args.batch_size,), device="cuda")

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loss_fn(model(static_input), static_target).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        static_loss = loss_fn(model(static_input), static_target)
        static_loss.backward()
        optimizer.step()

    for epoch in range(args.epochs):
        for inputs, targets in loader:
            static_input.copy_(inputs, non_blocking=True)
            static_target.copy_(targets, non_blocking=True)
            graph.replay()
        accuracy = evaluate(model, test_loader)
        print(f"epoch {epoch}: loss {static_loss.item():.3f} accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
