"""An ordinary CUDA training script: a decoder of about a billion parameters, made on the card,
AdamW, bfloat16 autocast.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        x = x + self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        return x + self.down(F.gelu(self.up(self.second(x))))


class Decoder(nn.Module):
    def __init__(self, vocabulary, length, width, heads, layers):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument(
        "--empty", action="store_true", help="make it without memory first, then empty on the card"
    )
    args = parser.parse_args()

    sizes = (32000, args.length, args.width, args.width // 64, args.layers)
    if args.empty:
        with torch.device("meta"):
            model = Decoder(*sizes)
        model = model.to_empty(device="cuda")
    else:
        with torch.device("cuda"):
            model = Decoder(*sizes)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, 32000, (args.samples, args.length + 1))
    for (batch,) in DataLoader(TensorDataset(tokens), batch_size=args.batch_size, shuffle=True):
        batch = batch.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
