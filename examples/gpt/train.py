"""Train a GPT-2 of 124 million parameters, written out with torch alone, to continue a text, one
token a character.

    python examples/gpt/train.py --batch-size 8

The text is ../chat/dialogues.tsv. `--layers 2 --width 128 --context 64` trains on a CPU.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

TEXT = Path(__file__).parents[1] / "chat" / "dialogues.tsv"


class Windows(Dataset):
    """Every stretch of `context` characters, and the same one further on."""

    def __init__(self, tokens, context):
        self.tokens, self.context = tokens, context

    def __len__(self):
        return len(self.tokens) - self.context

    def __getitem__(self, index):
        window = self.tokens[index : index + self.context + 1]
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x_bld):
        batch, length, width = x_bld.shape
        qkv = self.qkv(self.norm1(x_bld)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_bld = x_bld + self.proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x_bld + self.mlp(self.norm2(x_bld))


class GPT(nn.Module):
    def __init__(self, words, layers, width, context):
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, max(width // 64, 1)) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens_bl):
        x_bld = self.tokens(tokens_bl) + self.positions[: tokens_bl.shape[1]]
        return self.head(self.norm(self.blocks(x_bld)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--words", type=int, default=50_304, help="size of the vocabulary")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    text = TEXT.read_text(encoding="utf-8")
    number = {letter: index for index, letter in enumerate(sorted(set(text)))}
    tokens = torch.tensor([number[letter] for letter in text])
    loader = DataLoader(
        Windows(tokens, args.context),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
    )
    model = GPT(args.words, args.layers, args.width, args.context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        for inputs_bl, targets_bl in loader:
            with torch.autocast(device, dtype=torch.bfloat16):
                logits = model(inputs_bl.to(device))
                loss = F.cross_entropy(logits.flatten(0, 1), targets_bl.to(device).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
