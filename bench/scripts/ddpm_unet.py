"""A denoising diffusion model: a U-Net with attention and class conditioning, AMP, EMA, noise made
on the card, sampling.
"""

import argparse
import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def timestep_embedding(steps, width):
    frequencies = torch.exp(
        -math.log(10000) * torch.arange(width // 2, device=steps.device) / (width // 2)
    )
    angles = steps[:, None].float() * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class ResBlock(nn.Module):
    def __init__(self, channels, out_channels, embedding):
        super().__init__()
        self.norm1, self.conv1 = (
            nn.GroupNorm(32, channels),
            nn.Conv2d(channels, out_channels, 3, padding=1),
        )
        self.embed = nn.Linear(embedding, 2 * out_channels)
        self.norm2, self.conv2 = (
            nn.GroupNorm(32, out_channels),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
        )
        self.skip = (
            nn.Conv2d(channels, out_channels, 1) if channels != out_channels else nn.Identity()
        )

    def forward(self, x, embedding):
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.embed(F.silu(embedding))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class Attention(nn.Module):
    """Self-attention over the pixels, then cross-attention to the context."""

    def __init__(self, channels, context, heads=8):
        super().__init__()
        self.heads = heads
        self.norm, self.norm_cross = nn.GroupNorm(32, channels), nn.LayerNorm(channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.query, self.key_value = nn.Linear(channels, channels), nn.Linear(context, 2 * channels)
        self.out_cross = nn.Linear(channels, channels)

    def _attend(self, query, key, value):
        split = [t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (query, key, value)]
        return F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)

    def forward(self, x, context):
        batch, channels, height, width = x.shape
        h = self.norm(x).flatten(2).transpose(1, 2)
        h = h + self.out(self._attend(*self.qkv(h).chunk(3, dim=-1)))
        h = h + self.out_cross(
            self._attend(self.query(self.norm_cross(h)), *self.key_value(context).chunk(2, dim=-1))
        )
        return x + h.transpose(1, 2).reshape(batch, channels, height, width)


class UNet(nn.Module):
    def __init__(self, base=128, multipliers=(1, 2, 4), context=256, classes=10):
        super().__init__()
        self.base, embedding = base, 4 * base
        self.time = nn.Sequential(
            nn.Linear(base, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.context = nn.Embedding(classes, 8 * context)
        self.inside = nn.Conv2d(3, base, 3, padding=1)
        self.down, self.up, widths, channels = nn.ModuleList(), nn.ModuleList(), [base], base
        for level, factor in enumerate(multipliers):
            for _ in range(2):
                self.down.append(ResBlock(channels, base * factor, embedding))
                channels = base * factor
                self.down.append(Attention(channels, context) if level else nn.Identity())
                widths.append(channels)
            if level + 1 < len(multipliers):
                self.down.append(nn.Conv2d(channels, channels, 3, stride=2, padding=1))
                widths.append(channels)
        self.middle = nn.ModuleList(
            [
                ResBlock(channels, channels, embedding),
                Attention(channels, context),
                ResBlock(channels, channels, embedding),
            ]
        )
        for level, factor in reversed(list(enumerate(multipliers))):
            for _ in range(3):
                self.up.append(ResBlock(channels + widths.pop(), base * factor, embedding))
                channels = base * factor
                self.up.append(Attention(channels, context) if level else nn.Identity())
            if level:
                self.up.append(nn.ConvTranspose2d(channels, channels, 4, stride=2, padding=1))
        self.outside = nn.Sequential(
            nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1)
        )

    def forward(self, x, steps, labels):
        embedding = self.time(timestep_embedding(steps, self.base))
        context = self.context(labels).unflatten(-1, (8, -1))
        h = self.inside(x)
        kept = [h]
        for layer in self.down:
            h = self._through(layer, h, embedding, context)
            if isinstance(layer, (Attention, nn.Identity, nn.Conv2d)):
                kept.append(h)
        for layer in self.middle:
            h = self._through(layer, h, embedding, context)
        for layer in self.up:
            if isinstance(layer, ResBlock):
                h = torch.cat([h, kept.pop()], dim=1)
            h = self._through(layer, h, embedding, context)
        return self.outside(h)

    @staticmethod
    def _through(layer, h, embedding, context):
        if isinstance(layer, ResBlock):
            return layer(h, embedding)
        return layer(h, context) if isinstance(layer, Attention) else layer(h)


@torch.no_grad()
def sample(model, alphas, labels, size, steps=10):
    x = torch.randn(len(labels), 3, size, size, device="cuda")
    for step in torch.linspace(len(alphas) - 1, 0, steps).long():
        t = torch.full((len(labels),), int(step), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            noise = model(x, t, labels)
        alpha = alphas[t][:, None, None, None]
        x = (x - (1 - alpha).sqrt() * noise.float()) / alpha.sqrt()
    return x.clamp(-1, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--base", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)

    data = TensorDataset(
        torch.rand(2048, 3, args.image_size, args.image_size) * 2 - 1, torch.randint(0, 10, (2048,))
    )
    loader = DataLoader(
        data, args.batch_size, shuffle=True, num_workers=2, pin_memory=True, drop_last=True
    )
    model = UNet(args.base).cuda()
    ema = copy.deepcopy(model).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    scaler = torch.amp.GradScaler("cuda")
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device="cuda"), dim=0)

    for epoch in range(args.epochs):
        model.train()
        for images, labels in loader:
            images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            steps = torch.randint(0, len(alphas), (len(images),), device="cuda")
            noise = torch.randn_like(images)
            alpha = alphas[steps][:, None, None, None]
            noisy = alpha.sqrt() * images + (1 - alpha).sqrt() * noise
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.mse_loss(model(noisy, steps, labels).float(), noise)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            with torch.no_grad():
                for averaged, parameter in zip(ema.parameters(), model.parameters()):
                    averaged.lerp_(parameter, 1e-3)
        images = sample(ema, alphas, torch.arange(10, device="cuda"), args.image_size)
        print(f"epoch {epoch}: loss {loss.item():.4f}, {tuple(images.shape)} sampled")
    torch.save(ema.state_dict(), "ema.pt")


if __name__ == "__main__":
    main()
