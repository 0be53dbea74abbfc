"""Train in stages: each start takes up checkpoint.pt, wherever it was written, and TensorBoard is
told how it goes.
"""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

CHECKPOINT = "checkpoint.pt"


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, stride=2, padding=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 5, stride=2, padding=2),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 1024),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(1024, 10),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2, help="of this stage")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, default=4096)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(args.device)
    labels = torch.randint(0, 10, (args.samples,))
    pictures = torch.randn(args.samples, 1, 28, 28) + labels.view(-1, 1, 1, 1) / 3
    train_set, valid_set = random_split(TensorDataset(pictures, labels), [0.9, 0.1])
    train_loader = DataLoader(
        train_set, args.batch_size, shuffle=True, pin_memory=args.device == "cuda"
    )
    valid_loader = DataLoader(valid_set, args.batch_size)

    model = make_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    first, best = 0, 0.0
    if os.path.exists(CHECKPOINT):
        state = torch.load(CHECKPOINT, map_location=args.device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        first, best = state["epoch"] + 1, state["best"]
        print(f"resumed at epoch {first}, best so far {best:.2%}")

    writer = SummaryWriter("runs")
    for epoch in range(first, first + args.epochs):
        model.train()
        for step, (batch, target) in enumerate(tqdm(train_loader, desc=f"epoch {epoch}")):
            batch, target = (
                batch.to(device, non_blocking=True),
                target.to(device, non_blocking=True),
            )
            loss = nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("loss/train", loss.item(), epoch * len(train_loader) + step)
        scheduler.step()

        model.eval()
        right = 0
        with torch.no_grad():
            for batch, target in valid_loader:
                right += (model(batch.to(device)).argmax(1).cpu() == target).sum().item()
        accuracy = right / len(valid_set)
        writer.add_scalar("accuracy/valid", accuracy, epoch)
        writer.add_histogram("weights/last", model[-1].weight, epoch)
        best = max(best, accuracy)
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.2%}")
        torch.save(
            {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "epoch": epoch,
                "best": best,
            },
            CHECKPOINT,
        )
    writer.close()


if __name__ == "__main__":
    main()
