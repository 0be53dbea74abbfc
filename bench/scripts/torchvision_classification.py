"""torchvision's reference style of training: meters, warm-up, AMP, EMA with update period,
channels_last, label smoothing.
"""

import argparse
import datetime
import time
from collections import defaultdict, deque

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import FakeData


class SmoothedValue:
    """Track a series of values and provide access to smoothed values over a window or the global
    series average.
    """

    def __init__(self, window_size=20):
        self.deque = deque(maxlen=window_size)
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.deque.append(value)
        self.count += n
        self.total += value * n

    @property
    def global_avg(self):
        return self.total / max(1, self.count)

    def __str__(self):
        return f"{torch.tensor(list(self.deque)).median().item():.4f} ({self.global_avg:.4f})"


class MetricLogger:
    def __init__(self):
        self.meters = defaultdict(SmoothedValue)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value.item() if isinstance(value, torch.Tensor) else value)

    def log_every(self, iterable, print_freq, header):
        start = end = time.time()
        for i, batch in enumerate(iterable):
            yield batch
            self.meters["time"].update(time.time() - end)
            end = time.time()
            if i % print_freq == 0:
                memory = torch.cuda.max_memory_allocated() / 1024**2
                meters = "  ".join(f"{name}: {meter}" for name, meter in self.meters.items())
                print(f"{header} [{i}/{len(iterable)}]  {meters}  max mem: {memory:.0f}")
        print(f"{header} Total time: {datetime.timedelta(seconds=int(time.time() - start))}")


class ExponentialMovingAverage(torch.optim.swa_utils.AveragedModel):
    def __init__(self, model, decay, device):
        def ema_avg(avg_model_param, model_param, num_averaged):
            return decay * avg_model_param + (1 - decay) * model_param

        super().__init__(model, device, ema_avg, use_buffers=True)


def accuracy(output, target, topk=(1,)):
    with torch.inference_mode():
        _, pred = output.topk(max(topk), 1, True, True)
        correct = pred.t().eq(target[None])
        return [
            correct[:k].flatten().sum(dtype=torch.float32) * (100.0 / target.size(0)) for k in topk
        ]


def train_one_epoch(
    model, criterion, optimizer, data_loader, device, epoch, args, model_ema, scaler
):
    model.train()
    logger = MetricLogger()
    for i, (image, target) in enumerate(logger.log_every(data_loader, 10, f"Epoch: [{epoch}]")):
        image, target = image.to(device), target.to(device)
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            output = model(image)
            loss = criterion(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        if i % args.model_ema_steps == 0:
            model_ema.update_parameters(model)
            if epoch < args.lr_warmup_epochs:
                model_ema.n_averaged.fill_(0)
        acc1, acc5 = accuracy(output, target, topk=(1, 5))
        logger.update(loss=loss, acc1=acc1, acc5=acc5, lr=optimizer.param_groups[0]["lr"])


def evaluate(model, criterion, data_loader, device, log_suffix=""):
    model.eval()
    logger = MetricLogger()
    with torch.inference_mode():
        for image, target in logger.log_every(data_loader, 10, f"Test: {log_suffix}"):
            image, target = (
                image.to(device, non_blocking=True),
                target.to(device, non_blocking=True),
            )
            output = model(image)
            loss = criterion(output, target)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            logger.update(loss=loss, acc1=acc1, acc5=acc5)
    return logger.meters["acc1"].global_avg


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr-warmup-epochs", type=int, default=1)
    parser.add_argument("--model-ema-steps", type=int, default=2)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2048)
    args = parser.parse_args()
    device = torch.device("cuda")
    torch.backends.cudnn.benchmark = True

    size = (3, 224, 224)
    augment = transforms.Compose(
        [transforms.RandomHorizontalFlip(), transforms.ToTensor(), transforms.RandomErasing(0.1)]
    )
    train = FakeData(args.samples, size, 1000, augment)
    test = FakeData(512, size, 1000, transforms.ToTensor())
    data_loader = DataLoader(
        train, args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True
    )
    test_loader = DataLoader(test, args.batch_size, num_workers=args.workers, pin_memory=True)

    model = torchvision.models.get_model(args.model, weights=None, num_classes=1000).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    parameters = torchvision.ops._utils.split_normalization_params(model)
    groups = [{"params": p, "weight_decay": w} for p, w in zip(parameters, (0.0, 2e-5)) if p]
    optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.9, nesterov=True)
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    main_lr = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, T_max=args.epochs - args.lr_warmup_epochs
    )
    warmup = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=0.01, total_iters=args.lr_warmup_epochs
    )
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warmup, main_lr], milestones=[args.lr_warmup_epochs]
    )
    model_ema = ExponentialMovingAverage(model, device=device, decay=0.99)

    for epoch in range(args.epochs):
        train_one_epoch(
            model, criterion, optimizer, data_loader, device, epoch, args, model_ema, scaler
        )
        lr_scheduler.step()
        evaluate(model, criterion, test_loader, device)
        evaluate(model_ema, criterion, test_loader, device, log_suffix="EMA")
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "model_ema": model_ema.state_dict(),
        }
        torch.save(checkpoint, f"model_{epoch}.pth")


if __name__ == "__main__":
    main()
