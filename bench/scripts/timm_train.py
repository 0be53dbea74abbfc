"""An ordinary CUDA training script: an image model of timm, SGD with Nesterov momentum, cross-entropy on random images.

The settings are the defaults of timm's own training script: fp32, the model's input size, `cudnn.benchmark`.
"""

import argparse

import timm.optim
import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--weight-decay", type=float, default=2e-5)
    args = parser.parse_args()

    torch.manual_seed(42)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    model = timm.create_model(args.model, pretrained=False).to(device)
    channels, height, width = model.default_cfg["input_size"]
    groups = timm.optim.param_groups_weight_decay(model, args.weight_decay)
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9, nesterov=True)
    loss_fn = nn.CrossEntropyLoss().to(device)

    model.train()
    for step in range(args.steps):
        images = torch.randn(args.batch_size, channels, height, width).to(device, non_blocking=True)
        labels = torch.randint(0, max(1, model.num_classes), (args.batch_size,)).to(device, non_blocking=True)
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
