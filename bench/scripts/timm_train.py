"""An ordinary CUDA training script: an image model of timm, trained as timm's own script does by
default.

That is: fp32, the model's input size, SGD with Nesterov momentum, smoothed labels,
`cudnn.benchmark`, and timm's prefetching loader, which copies and normalizes the next batch on a
stream of its own while the current one is trained. Images are made up.
"""

import argparse

import numpy as np
import timm
import torch
from timm.data import resolve_data_config
from timm.data.loader import PrefetchLoader, fast_collate
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from torch.utils.data import DataLoader, Dataset


class MadeUpImages(Dataset):
    def __init__(self, count, size, num_classes):
        self.count, self.size, self.num_classes = count, size, num_classes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return np.full(self.size, index % 256, dtype=np.uint8), index % self.num_classes


def train_one_epoch(model, loader, optimizer, loss_fn, log_interval):
    model.train()
    optimizer.zero_grad()
    for step, (images, labels) in enumerate(loader):
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % log_interval == 0:
            print(f"step {step}: loss {loss.item():.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--weight-decay", type=float, default=2e-5)
    parser.add_argument("--smoothing", type=float, default=0.1)
    parser.add_argument("--log-interval", type=int, default=50)
    args = parser.parse_args()

    torch.manual_seed(42)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    model = timm.create_model(args.model, pretrained=False)
    config = resolve_data_config({}, model=model)
    model.to(device)
    optimizer = create_optimizer_v2(
        model, opt="sgd", lr=args.lr, momentum=0.9, weight_decay=args.weight_decay
    )
    dataset = MadeUpImages(
        args.steps * args.batch_size, config["input_size"], max(1, model.num_classes)
    )
    batches = DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, drop_last=True, collate_fn=fast_collate
    )
    loader = PrefetchLoader(
        batches, config["mean"], config["std"], channels=config["input_size"][0], device=device
    )
    loss_fn = LabelSmoothingCrossEntropy(args.smoothing).to(device)
    train_one_epoch(model, loader, optimizer, loss_fn, args.log_interval)


if __name__ == "__main__":
    main()
