"""A language model with a mixture of experts, wrapped in torch.compile; top-2 routing with dense
dispatch by capacity.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Mixture(nn.Module):
    """Each token goes to its two best experts, as far as these have room (GShard)."""

    def __init__(self, width, experts, capacity_factor=1.25):
        super().__init__()
        self.experts, self.capacity_factor = experts, capacity_factor
        self.router = nn.Linear(width, experts, bias=False)
        self.inside = nn.Parameter(torch.randn(experts, width, 4 * width) * width**-0.5)
        self.outside = nn.Parameter(torch.randn(experts, 4 * width, width) * (4 * width) ** -0.5)

    def forward(self, x):
        tokens = x.flatten(0, 1)
        gates = F.softmax(self.router(tokens), dim=-1, dtype=torch.float32)
        weights, chosen = gates.topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        capacity = int(self.capacity_factor * 2 * len(tokens) / self.experts)
        wanted = F.one_hot(chosen, self.experts)
        place = (wanted.flatten(0, 1).cumsum(0) - 1).view_as(wanted)
        kept = wanted * (place < capacity)
        slots = F.one_hot((place * kept).sum(-1), capacity) * kept.sum(-1, keepdim=True)
        combine = torch.einsum("tk,tke,tkc->tec", weights, kept.float(), slots.float())
        routed = torch.einsum("tec,td->ecd", (combine > 0).to(tokens.dtype), tokens)
        hidden = F.gelu(torch.bmm(routed, self.inside))
        out = torch.einsum("tec,ecd->td", combine.to(tokens.dtype), torch.bmm(hidden, self.outside))
        balance = (gates.mean(0) * wanted.float().sum(1).mean(0)).sum() * self.experts
        return out.view_as(x), balance


class Layer(nn.Module):
    def __init__(self, width, heads, experts):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.proj = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.mixture = Mixture(width, experts)

    def forward(self, x):
        query, key, value = (
            self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3).unbind(2)
        )
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).flatten(2))
        out, balance = self.mixture(self.norm2(x))
        return x + out, balance


class Model(nn.Module):
    def __init__(self, vocabulary=4096, width=256, heads=4, layers=4, experts=8, length=128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads, experts) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        total = 0.0
        for layer in self.layers:
            x, balance = layer(x)
            total = total + balance
        return self.head(self.norm(x)), total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)

    data = TensorDataset(torch.randint(0, 4096, (2048, args.length + 1)))
    loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True)
    model = torch.compile(Model(length=args.length).cuda(), mode="max-autotune-no-cudagraphs")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
    for epoch in range(args.epochs):
        model.train()
        for (tokens,) in loader:
            tokens = tokens.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                logits, balance = model(tokens[:, :-1])
                loss = (
                    F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) + 0.01 * balance
                )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            perplexity = F.cross_entropy(
                model(tokens[:, :-1])[0].flatten(0, 1), tokens[:, 1:].flatten()
            ).exp()
        print(f"epoch {epoch}: perplexity {perplexity.item():.1f}")


if __name__ == "__main__":
    main()
