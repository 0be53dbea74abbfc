"""Denoising diffusion: a U-shaped network with group norm and attention at its bottom (Ho et al.,
arXiv 2006.11239).
"""

import options
import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, inside, outside, time):
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(32, inside), nn.SiLU(), nn.Conv2d(inside, outside, 3, padding=1)
        )
        self.time = nn.Linear(time, outside)
        self.second = nn.Sequential(
            nn.GroupNorm(32, outside), nn.SiLU(), nn.Conv2d(outside, outside, 3, padding=1)
        )
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x, t):
        return self.second(self.first(x) + self.time(t)[:, :, None, None]) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(32, width),
            nn.Conv2d(width, 3 * width, 1),
            nn.Conv2d(width, width, 1),
        )

    def forward(self, x):
        q, k, v = (
            p.flatten(2).unflatten(1, (self.heads, -1)).transpose(2, 3)
            for p in self.qkv(self.norm(x)).chunk(3, 1)
        )
        return x + self.out(
            F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(x.shape)
        )


class UNet(nn.Module):
    def __init__(self, width, levels=3):
        super().__init__()
        time, widths = 4 * width, [width << level for level in range(levels)]
        self.time = nn.Sequential(
            nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time), nn.SiLU()
        )
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        pairs = list(zip([width, *widths], widths, strict=False))
        self.down = nn.ModuleList(Residual(inside, outside, time) for inside, outside in pairs)
        self.middle, self.attend = Residual(widths[-1], widths[-1], time), Attention(widths[-1])
        self.up = nn.ModuleList(
            Residual(2 * outside, inside, time) for inside, outside in reversed(pairs)
        )
        self.leave = nn.Sequential(
            nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)
        )
        rates = torch.exp(-9.2 * torch.arange(width // 2) / (width // 2))
        self.register_buffer("rates", rates)

    def forward(self, x, t):
        angles = t[:, None].float() * self.rates
        t, x, kept = self.time(torch.cat([angles.sin(), angles.cos()], 1)), self.enter(x), []
        for block in self.down:
            x = block(x, t)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.attend(self.middle(x, t))
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1), t)
        return self.leave(x)


def main():
    parser = options.parser(__doc__)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--image-size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = UNet(args.width).cuda()
    optimizer = options.OPTIMIZERS[args.optimizer](model.parameters())
    scaler = options.scaler(args.amp)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), 0)
    images = torch.rand(args.batch_size, 3, args.image_size, args.image_size) * 2 - 1
    for _ in range(args.steps):
        x = images.cuda(non_blocking=True)
        noise, t = torch.randn_like(x), torch.randint(0, 1000, (len(x),), device="cuda")
        share = kept[t][:, None, None, None]
        with options.autocast(args.amp):
            guess = model(share.sqrt() * x + (1 - share).sqrt() * noise, t)
            loss = F.mse_loss(guess, noise)
        options.update(loss, optimizer, scaler)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
