"""timm's own parts, put together as its train.py does: factory, loader with its prefetcher, Mixup,
optimizer, EMA.
"""

import argparse

import timm
import torch
from timm.data import Mixup, create_dataset, create_loader, resolve_data_config
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler, accuracy

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--model", default="resnet18")
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()

device = torch.device("cuda")
model = timm.create_model(args.model, num_classes=2).to(device, memory_format=torch.channels_last)
config = resolve_data_config({}, model=model)
mixup = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, num_classes=2)
loaders = {}
for split in ("train", "val"):
    dataset = create_dataset("", root=f"{args.data}/{split}")
    loaders[split] = create_loader(
        dataset,
        input_size=config["input_size"],
        batch_size=args.batch_size,
        is_training=split == "train",
        num_workers=1,
        device=device,
    )
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scaler, ema = NativeScaler(), ModelEmaV3(model, decay=0.999)
schedule = CosineLRScheduler(optimizer, t_initial=args.epochs)
criterion = SoftTargetCrossEntropy()

for epoch in range(args.epochs):
    model.train()
    for images, targets in loaders["train"]:
        images, targets = mixup(images[: len(images) // 2 * 2], targets[: len(targets) // 2 * 2])
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cuda"):
            loss = criterion(model(images), targets)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        ema.update(model)
    schedule.step(epoch + 1)
    model.eval()
    seen = right = 0.0
    with torch.inference_mode():
        for images, targets in loaders["val"]:
            right += accuracy(ema.module(images), targets)[0].item() * len(images)
            seen += len(images)
    print(f"epoch {epoch}: accuracy {right / seen:.1f} %")
