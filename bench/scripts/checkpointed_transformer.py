"""A transformer encoder whose layers are computed again in the backward pass:
torch.utils.checkpoint in each of its kinds.
"""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

KINDS = ("none", "reentrant", "non-reentrant", "sequential")


class Encoder(nn.Module):
    def __init__(self, kind, words=5000, width=256, layers=8, length=128, classes=4):
        super().__init__()
        self.kind = kind
        self.words = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
                for _ in range(layers)
            )
        )
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        data = self.words(tokens) + self.places
        if self.kind == "none" or not self.training:
            data = self.layers(data)
        elif self.kind == "sequential":
            data = checkpoint_sequential(self.layers, 4, data, use_reentrant=False)
        else:
            for layer in self.layers:
                data = checkpoint(layer, data, use_reentrant=self.kind == "reentrant")
        return self.head(data.mean(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--kind", choices=KINDS, default="non-reentrant")
    args = parser.parse_args()

    torch.manual_seed(0)
    tokens = torch.randint(0, 5000, (4096, 128))
    labels = tokens[:, :8].sum(1) % 4
    train_loader = DataLoader(
        TensorDataset(tokens[:3584], labels[:3584]), args.batch_size, shuffle=True
    )
    valid_loader = DataLoader(TensorDataset(tokens[3584:], labels[3584:]), args.batch_size)
    model = Encoder(args.kind).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        model.train()
        for batch, target in train_loader:
            batch, target = batch.cuda(), target.cuda()
            optimizer.zero_grad()
            with torch.amp.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(model(batch), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        model.eval()
        right = 0
        with torch.inference_mode():
            for batch, target in valid_loader:
                right += (model(batch.cuda()).argmax(1) == target.cuda()).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {right / 512:.2%}")


if __name__ == "__main__":
    main()
