# /// script
# requires-python = ">=3.9"
# dependencies = ["torch>=2.6"]
# ///
"""Teach a small transformer to add: at each digit, the sum of the digits so far, modulo 10.

python train.py --batch-size 64 --lr 0.001
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Adder(nn.Module):
    def __init__(self, width, layers, length):
        super().__init__()
        self.digits = nn.Embedding(10, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, digits):
        hidden = self.digits(digits) + self.places
        return self.head(self.blocks(hidden, mask=self.mask, is_causal=True))


def examples(count, length):
    digits = torch.randint(10, (count, length))
    return TensorDataset(digits, digits.cumsum(1) % 10)


def loss_of(model, digits, sums, device):
    scores = model(digits.to(device))
    return nn.functional.cross_entropy(scores.flatten(0, 1), sums.to(device).flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    training = DataLoader(examples(20_000, 64), args.batch_size, shuffle=True)
    evaluation = DataLoader(examples(2_000, 64), 256)
    model = Adder(args.width, layers=2, length=64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr * args.batch_size / 256)
    for epoch in range(args.epochs):
        for digits, sums in training:
            loss = loss_of(model, digits, sums, device)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            losses = [loss_of(model, *batch, device) for batch in evaluation]
        print(f"epoch {epoch + 1}: loss {torch.stack(losses).mean():.3f}")


if __name__ == "__main__":
    main()
