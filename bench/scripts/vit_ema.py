"""A Vision Transformer written out, bf16 autocast, torch's AveragedModel as EMA, OneCycleLR, fused
AdamW, mixed patches.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __init__(self, length, size, classes):
        self.length, self.size, self.classes = length, size, classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((3, self.size, self.size), index / self.length), index % self.classes


class Block(nn.Module):
    def __init__(self, width, heads, mlp_ratio=4, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_ratio * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(mlp_ratio * width, width),
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = (
            self.qkv(self.norm1(x))
            .reshape(batch, tokens, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        attended = (
            F.scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(batch, tokens, width)
        )
        x = x + self.drop(self.proj(attended))
        return x + self.drop(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    def __init__(self, size=224, patch=16, width=384, depth=12, heads=6, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    correct = torch.zeros((), device="cuda")
    for images, labels in loader:
        with torch.autocast("cuda", torch.bfloat16):
            correct += (
                model(images.cuda(non_blocking=True)).argmax(1) == labels.cuda(non_blocking=True)
            ).sum()
    return correct.item() / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--samples", type=int, default=4096)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")

    train = DataLoader(
        Images(args.samples, 224, 1000),
        args.batch_size,
        shuffle=True,
        num_workers=2,
        pin_memory=True,
        drop_last=True,
    )
    test = DataLoader(Images(512, 224, 1000), args.batch_size, num_workers=2, pin_memory=True)
    model = VisionTransformer(depth=args.depth).cuda()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    decay, rest = [], []
    for parameter in model.parameters():
        (decay if parameter.ndim >= 2 else rest).append(parameter)
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-3, total_steps=args.epochs * len(train)
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        running = torch.zeros((), device="cuda")
        for images, labels in train:
            images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = criterion(model(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()
            ema.update_parameters(model)
            running += loss.detach()
        accuracy = evaluate(ema, test)
        print(f"epoch {epoch}: loss {running.item() / len(train):.4f} accuracy {accuracy:.4f}")
        if accuracy >= best:
            best = accuracy
            torch.save(
                {
                    "model": model.state_dict(),
                    "ema": ema.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
                "best.pt",
            )


if __name__ == "__main__":
    main()
