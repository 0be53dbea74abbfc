"""An ordinary CUDA training script: a perceptron of a given shape, Adam and cross-entropy on 4096
random samples.

The form of the GPUMemNet project's measurements (arXiv 2602.17817): `depth` hidden layers of Linear
+ ReLU, then a Linear.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 4096


def widths(architecture, input_size, output_size, depth):
    """Widths of the hidden layers. Halving never goes under the output's width."""
    if architecture == "uniform":
        return [input_size] * depth
    if architecture == "gradual":
        fall = (input_size - output_size) // depth
        return [input_size - fall * (layer + 1) for layer in range(depth)]
    layers = depth + 1 if architecture == "bottleneck" else depth
    halved = [input_size]
    for _ in range(layers):
        halved.append(max(halved[-1] // 2, output_size))
    return halved[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input-size", type=int, required=True)
    parser.add_argument("--output-size", type=int, required=True)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument(
        "--architecture", choices=["uniform", "pyramid", "bottleneck", "gradual"], required=True
    )
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda")
    dataset = TensorDataset(
        torch.randn(SAMPLES, args.input_size), torch.randint(0, args.output_size, (SAMPLES,))
    )
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    sizes = [
        args.input_size,
        *widths(args.architecture, args.input_size, args.output_size, args.depth),
    ]
    layers = [
        part
        for inside, outside in zip(sizes, sizes[1:])
        for part in (nn.Linear(inside, outside), nn.ReLU())
    ]
    model = nn.Sequential(*layers, nn.Linear(sizes[-1], args.output_size)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(args.epochs):
        for features, labels in loader:
            features, labels = features.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
