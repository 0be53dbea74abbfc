"""Train a small convolutional network with Lightning on made images: which of ten stripes
patterns is it?

python examples/lightning/train.py --batch-size 64 --max-epochs 2
"""

import argparse
from pathlib import Path

import lightning
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def striped_images(count, seed):
    """Images (count, 1, 28, 28) of stripes at one of ten angles in noise, and the angles' numbers
    (count,).
    """
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=source)
    angle = labels.float().view(-1, 1, 1) * torch.pi / 10
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    waves = torch.sin((x * torch.cos(angle) + y * torch.sin(angle)) * 0.9)
    return (waves + 0.5 * torch.randn(count, 28, 28, generator=source)).unsqueeze(1), labels


class Stripes(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def training_step(self, batch, _):
        images, labels = batch
        loss = F.cross_entropy(self.net(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--max-epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    args = parser.parse_args()

    lightning.seed_everything(0)
    train_set = TensorDataset(*striped_images(args.samples, seed=1))
    valid_set = TensorDataset(*striped_images(args.samples // 4, seed=2))
    trainer = lightning.Trainer(
        max_epochs=args.max_epochs,
        default_root_dir=args.out,
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(monitor="accuracy", mode="max")],
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Stripes(args.lr),
        DataLoader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=args.workers),
        DataLoader(valid_set, batch_size=args.batch_size, num_workers=args.workers),
    )
    print(f"accuracy {trainer.callback_metrics['accuracy'].item():.2%}")


if __name__ == "__main__":
    main()
