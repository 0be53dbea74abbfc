"""Language modelling: a decoder in the form of GPT-2 (Radford et al., 2019), attention by
scaled_dot_product_attention.
"""

import options
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class RootMeanSquare(nn.Module):
    """Written out, as many have it: in float32."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.type_as(x)


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.both, self.down = nn.Linear(width, 5 * width), nn.Linear(5 * width // 2, width)

    def forward(self, x):
        gate, up = self.both(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, args):
        super().__init__()
        width, self.heads, self.dropout = args.width, args.heads, args.dropout
        norm = RootMeanSquare if args.root_mean_square else nn.LayerNorm
        self.first, self.second = norm(width), norm(width)
        self.sizes = [width, *[width // args.heads * (args.groups or args.heads)] * 2]
        self.qkv, self.out = nn.Linear(width, sum(self.sizes)), nn.Linear(width, width)
        plain = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        self.mlp = nn.Sequential(
            *([Gated(width)] if args.gated else plain), nn.Dropout(args.dropout)
        )

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (-1, x.shape[-1] // self.heads)).transpose(1, 2)
            for part in self.qkv(self.first(x)).split(self.sizes, -1)
        )
        seen = F.scaled_dot_product_attention(
            q,
            k,
            v,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            enable_gqa=k.shape[1] < self.heads,
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
        self.blocks = nn.ModuleList(Block(args) for _ in range(args.layers))
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
    parser.add_argument("--groups", type=int, help="heads of keys and values (default: all)")
    parser.add_argument("--gated", action="store_true")
    parser.add_argument("--root-mean-square", action="store_true")
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
