"""Train a network to read captchas: 4 characters out of 36, drawn by the `captcha` package as
1x60x160 images.

    python examples/captcha/train.py --batch-size 64 --epochs 10 --samples 20000

The images are drawn once and kept as PNG files whose name is the label
(captchas/train-10240-0/AB12_000123.png).
"""

import argparse
import multiprocessing
import random
import time
from pathlib import Path

import captcha.image
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LENGTH = 4
HEIGHT, WIDTH = 60, 160


class SeededSecrets:
    """Stands in for the `secrets` module inside the captcha package, so that a seed gives the same
    images again.
    """

    def __init__(self, seed):
        source = random.Random(seed)
        self.randbelow, self.randbits, self.choice = (
            source.randrange,
            source.getrandbits,
            source.choice,
        )


def draw(path, seed):
    captcha.image.secrets = SeededSecrets(seed)
    picture = (
        captcha.image.ImageCaptcha(width=WIDTH, height=HEIGHT)
        .generate_image(path.name[:LENGTH])
        .convert("L")
    )
    partial = path.with_name(f"{path.name}.partial")
    picture.save(partial, format="png")
    partial.rename(path)


def draw_captchas(folder, count, seed):
    """Draw the images that are missing in `folder`: a run that was interrupted is taken up where it
    stopped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = random.Random(seed)
    paths = [
        folder / f"{''.join(source.choices(ALPHABET, k=LENGTH))}_{index:06d}.png"
        for index in range(count)
    ]
    missing = [(path, f"{seed}/{index}") for index, path in enumerate(paths) if not path.exists()]
    if missing:
        with multiprocessing.Pool() as pool:
            pool.starmap(draw, missing, chunksize=64)
    return paths


class Captchas(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        with Image.open(path) as picture:
            pixels = torch.from_numpy(np.array(picture, dtype=np.float32)) / 127.5 - 1.0
        label = torch.tensor([ALPHABET.index(character) for character in path.name[:LENGTH]])
        return pixels.unsqueeze(0), label  # (1, 60, 160), (4,)


def block(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
    )


class Reader(nn.Module):
    """Seven convolution blocks with three poolings, then two linear layers: 19.07 million
    parameters.
    """

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            block(1, 32),
            nn.MaxPool2d(2),
            block(32, 64),
            block(64, 64),
            nn.MaxPool2d(2),
            block(64, 128),
            block(128, 128),
            nn.MaxPool2d(2),
            block(128, 128),
            block(128, 128),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(128 * (HEIGHT // 8) * (WIDTH // 8), 1024),
            nn.ReLU(inplace=True),
            nn.Dropout(0.25),
            nn.Linear(1024, LENGTH * len(ALPHABET)),
        )

    def forward(self, images):  # (batch, 1, 60, 160) -> (batch, 4, 36)
        return self.head(self.features(images)).view(-1, LENGTH, len(ALPHABET))


def train_epoch(model, loader, optimizer, scaler, device):
    model.train()
    total = torch.zeros((), device=device)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, enabled=device.type == "cuda"):
            loss = F.cross_entropy(model(images).flatten(0, 1), labels.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.detach() * len(images)
    return total.item() / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader, device):
    """Share of images read without a mistake, and share of characters read right."""
    model.eval()
    exact = characters = 0
    for images, labels in loader:
        with torch.autocast(device.type, enabled=device.type == "cuda"):
            logits = model(images.to(device, non_blocking=True))
        right = logits.argmax(-1) == labels.to(device, non_blocking=True)
        exact += right.all(-1).sum().item()
        characters += right.sum().item()
    return exact / len(loader.dataset), characters / (LENGTH * len(loader.dataset))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument(
        "--samples",
        type=int,
        default=10240,
        help="training images; an eighth as many more for validation",
    )
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "captchas")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    train_paths = draw_captchas(
        args.data / f"train-{args.samples}-{args.seed}", args.samples, f"train {args.seed}"
    )
    held_out = max(1, args.samples // 8)
    valid_paths = draw_captchas(
        args.data / f"valid-{held_out}-{args.seed}", held_out, f"valid {args.seed}"
    )
    common = {
        "batch_size": args.batch_size,
        "num_workers": args.workers,
        "pin_memory": device.type == "cuda",
    }
    train_loader = DataLoader(Captchas(train_paths), shuffle=True, **common)
    valid_loader = DataLoader(Captchas(valid_paths), **common)

    model = Reader().to(device)
    print(
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million parameters on {device}",
        flush=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    args.out.mkdir(parents=True, exist_ok=True)
    best = -1.0
    for epoch in range(1, args.epochs + 1):
        begun = time.perf_counter()
        loss = train_epoch(model, train_loader, optimizer, scaler, device)
        trained = time.perf_counter() - begun
        exact, characters = evaluate(model, valid_loader, device)
        print(
            f"epoch {epoch}: loss {loss:.4f}, exact {exact:.2%}, characters {characters:.2%}, "
            f"{len(train_paths) / trained:.1f} images/s",
            flush=True,
        )
        if characters > best:
            best = characters
            torch.save(model.state_dict(), args.out / "best.pt")


if __name__ == "__main__":
    main()
