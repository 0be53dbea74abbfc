"""Fine-tuning with timm: create_model, its optimizer and schedule, Mixup, ModelEmaV3, AMP with its
gradient scaler.
"""

import argparse

import torch
from timm import create_model
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __init__(self, length, size, classes):
        self.length, self.size, self.classes = length, size, classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, self.size, self.size, generator=generator), index % self.classes


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, scheduler, scaler, mixup, ema):
    losses = AverageMeter()
    updates = epoch * len(loader)
    model.train()
    for batch, (images, targets) in enumerate(loader):
        images, targets = images.cuda(non_blocking=True), targets.cuda(non_blocking=True)
        images, targets = mixup(images, targets)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda"):
            loss = loss_fn(model(images), targets)
        scaler(loss, optimizer, clip_grad=1.0, clip_mode="norm", parameters=model.parameters())
        optimizer.zero_grad()
        updates += 1
        ema.update(model, step=updates)
        torch.cuda.synchronize()
        losses.update(loss.item(), images.size(0))
        scheduler.step_update(num_updates=updates, metric=losses.avg)
        if batch % 50 == 0:
            rate = optimizer.param_groups[0]["lr"]
            print(
                f"Train: {epoch} [{batch}/{len(loader)}] Loss: {losses.val:.3f} "
                f"({losses.avg:.3f}) LR: {rate:.2e}"
            )
    return losses.avg


@torch.inference_mode()
def validate(model, loader):
    top1, top5 = AverageMeter(), AverageMeter()
    loss_fn = nn.CrossEntropyLoss().cuda()
    model.eval()
    for images, targets in loader:
        images, targets = (
            images.cuda().contiguous(memory_format=torch.channels_last),
            targets.cuda(),
        )
        with torch.autocast("cuda"):
            output = model(images)
            loss_fn(output, targets)
        first, fifth = accuracy(output, targets, topk=(1, 5))
        top1.update(first.item(), images.size(0))
        top5.update(fifth.item(), images.size(0))
    return top1.avg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="convnext_tiny")
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--img-size", type=int, default=224)
    parser.add_argument("--num-classes", type=int, default=100)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("-j", "--workers", type=int, default=2)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True

    model = create_model(
        args.model, pretrained=False, num_classes=args.num_classes, drop_path_rate=0.1
    )
    model.cuda().to(memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(
        model, opt="adamw", lr=5e-4, weight_decay=0.05, layer_decay=0.75
    )
    scheduler, epochs = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=args.epochs, warmup_epochs=1, warmup_lr=1e-6
    )
    mixup = Mixup(
        mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=args.num_classes
    )
    ema = ModelEmaV3(model, decay=0.9998, use_warmup=True)
    scaler, loss_fn = NativeScaler(), SoftTargetCrossEntropy().cuda()

    train = Noise(args.samples, args.img_size, args.num_classes)
    held_out = Noise(512, args.img_size, args.num_classes)
    loader = DataLoader(
        train,
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=True,
        drop_last=True,
        persistent_workers=True,
    )
    test_loader = DataLoader(held_out, args.batch_size, num_workers=args.workers, pin_memory=True)
    for epoch in range(epochs):
        train_one_epoch(epoch, model, loader, optimizer, loss_fn, scheduler, scaler, mixup, ema)
        top1, top1_ema = validate(model, test_loader), validate(ema.module, test_loader)
        print(f"epoch {epoch}: top-1 {top1:.2f} EMA {top1_ema:.2f}")
        scheduler.step(epoch + 1, top1_ema)
    torch.save({"state_dict": model.state_dict(), "ema": ema.module.state_dict()}, "last.pth")


if __name__ == "__main__":
    main()
