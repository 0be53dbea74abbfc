"""U-Net segmentation: channels_last, cudnn.benchmark, checkpointed encoder blocks, AMP, Dice and
cross-entropy, RMSprop.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, random_split


class Scans(Dataset):
    def __init__(self, length, size, classes):
        self.length, self.size, self.classes = length, size, classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        mask = (
            torch.randint(0, self.classes, (self.size // 8, self.size // 8))
            .repeat_interleave(8, 0)
            .repeat_interleave(8, 1)
        )
        return {"image": torch.randn(3, self.size, self.size), "mask": mask}


class DoubleConv(nn.Sequential):
    def __init__(self, channels, out):
        super().__init__(
            nn.Conv2d(channels, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, classes, widths=(64, 128, 256, 512), bilinear=False):
        super().__init__()
        self.checkpointing = False
        self.inside = DoubleConv(3, widths[0])
        self.down = nn.ModuleList(DoubleConv(a, b) for a, b in zip(widths, widths[1:]))
        self.grow, self.up = nn.ModuleList(), nn.ModuleList()
        for a, b in zip(widths[::-1], widths[-2::-1]):
            self.grow.append(nn.ConvTranspose2d(a, b, 2, 2))
            self.up.append(DoubleConv(2 * b, b))
        self.outside = nn.Conv2d(widths[0], classes, 1)

    def _run(self, block, x):
        return (
            checkpoint(block, x, use_reentrant=False)
            if self.checkpointing and self.training
            else block(x)
        )

    def forward(self, x):
        skips = [self._run(self.inside, x)]
        for block in self.down:
            skips.append(self._run(block, F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([skips.pop(), grow(x)], dim=1))
        return self.outside(x)


def dice_loss(probabilities, target, epsilon=1e-6):
    sum_dim = (-1, -2, -3)
    inter = 2 * (probabilities * target).sum(dim=sum_dim)
    sets_sum = probabilities.sum(dim=sum_dim) + target.sum(dim=sum_dim)
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    return 1 - ((inter + epsilon) / (sets_sum + epsilon)).mean()


@torch.inference_mode()
def evaluate(net, loader, device, amp, classes):
    net.eval()
    score = 0
    with torch.autocast(device.type, enabled=amp):
        for batch in loader:
            image = batch["image"].to(
                device=device, dtype=torch.float32, memory_format=torch.channels_last
            )
            true = batch["mask"].to(device=device, dtype=torch.long)
            predicted = F.one_hot(net(image).argmax(dim=1), classes).permute(0, 3, 1, 2).float()
            score += 1 - dice_loss(
                predicted[:, 1:], F.one_hot(true, classes).permute(0, 3, 1, 2).float()[:, 1:]
            )
    net.train()
    return score / max(len(loader), 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", "-b", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True

    train_set, val_set = random_split(
        Scans(512, args.size, args.classes), [448, 64], torch.Generator().manual_seed(0)
    )
    options = {"batch_size": args.batch_size, "num_workers": 2, "pin_memory": True}
    train_loader = DataLoader(train_set, shuffle=True, **options)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **options)
    model = UNet(args.classes).to(device=device, memory_format=torch.channels_last)
    model.checkpointing = args.checkpointing
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999, foreach=True
    )
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    grad_scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            images = batch["image"].to(
                device=device, dtype=torch.float32, memory_format=torch.channels_last
            )
            true_masks = batch["mask"].to(device=device, dtype=torch.long)
            with torch.autocast(device.type, enabled=args.amp):
                masks_pred = model(images)
                loss = criterion(masks_pred, true_masks)
                loss += dice_loss(
                    F.softmax(masks_pred, dim=1).float(),
                    F.one_hot(true_masks, args.classes).permute(0, 3, 1, 2).float(),
                )
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            grad_scaler.step(optimizer)
            grad_scaler.update()
        score = evaluate(model, val_loader, device, args.amp, args.classes)
        scheduler.step(score)
        print(f"epoch {epoch}: loss {loss.item():.4f} dice {float(score):.4f}")


if __name__ == "__main__":
    main()
