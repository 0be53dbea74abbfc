"""Language modelling: a decoder in the form of GPT-2 (Radford et al., 2019), attention by
scaled_dot_product_attention.
"""

import options
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        seen = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class Decoder(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.checkpoint = args.checkpoint
        self.words, self.places = (
            nn.Embedding(args.vocabulary, args.width),
            nn.Embedding(args.length, args.width),
        )
        self.blocks = nn.ModuleList(
            Block(args.width, args.heads, args.dropout) for _ in range(args.layers)
        )
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, args.vocabulary, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        return self.head(self.norm(x))


def main():
    parser = options.parser(__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpoint", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Decoder(args).cuda()
    optimizer = options.OPTIMIZERS[args.optimizer](model.parameters())
    scaler = options.scaler(args.amp)
    tokens = torch.randint(0, args.vocabulary, (args.batch_size, args.length + 1))
    for _ in range(args.steps):
        optimizer.zero_grad()
        for _ in range(args.accumulate):
            batch = tokens.cuda(non_blocking=True)
            with options.autocast(args.amp):
                logits = model(batch[:, :-1])
                loss = (
                    F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()) / args.accumulate
                )
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
