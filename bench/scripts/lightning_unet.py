"""Segment made images with a small U-Net in Lightning: one card, half precision, validation,
checkpoints, a CSV logger.
"""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Circles(Dataset):
    """Images (1, 96, 96) of a circle in noise, and the circle as a mask."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed
        self.y, self.x = torch.meshgrid(torch.arange(96.0), torch.arange(96.0), indexing="ij")

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(self.seed * self.count + index)
        x, y, radius = torch.rand(3, generator=source) * torch.tensor(
            [60.0, 60.0, 20.0]
        ) + torch.tensor([18.0, 18.0, 5.0])
        mask = ((self.x - x) ** 2 + (self.y - y) ** 2 < radius**2).float()
        return (mask + 0.5 * torch.randn(96, 96, generator=source)).unsqueeze(0), mask


def block(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.GroupNorm(8, outside),
        nn.SiLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.GroupNorm(8, outside),
        nn.SiLU(),
    )


class UNet(L.LightningModule):
    def __init__(self, width=32, lr=1e-3, batch_size=16, workers=0):
        super().__init__()
        self.save_hyperparameters()
        self.down = nn.ModuleList(
            [block(1, width), block(width, 2 * width), block(2 * width, 4 * width)]
        )
        self.up = nn.ModuleList([block(6 * width, 2 * width), block(3 * width, width)])
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, images):
        kept = []
        data = images
        for number, down in enumerate(self.down):
            data = down(data if number == 0 else F.max_pool2d(data, 2))
            kept.append(data)
        for up, skipped in zip(self.up, reversed(kept[:-1]), strict=True):
            data = up(
                torch.cat([F.interpolate(data, scale_factor=2, mode="bilinear"), skipped], dim=1)
            )
        return self.out(data).squeeze(1)

    def training_step(self, batch, _):
        images, masks = batch
        loss = F.binary_cross_entropy_with_logits(self(images), masks)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _):
        images, masks = batch
        found = self(images).sigmoid() > 0.5
        overlap = (found & masks.bool()).sum((1, 2)) / (found | masks.bool()).sum((1, 2)).clamp(
            min=1
        )
        self.log("overlap", overlap.float().mean(), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def train_dataloader(self):
        return DataLoader(
            Circles(2048, 1),
            self.hparams.batch_size,
            shuffle=True,
            num_workers=self.hparams.workers,
            pin_memory=True,
        )

    def val_dataloader(self):
        return DataLoader(
            Circles(256, 2),
            self.hparams.batch_size,
            num_workers=self.hparams.workers,
            pin_memory=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--precision", default="16-mixed")
    parser.add_argument("--max-epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator="gpu",
        devices=1,
        precision=args.precision,
        max_epochs=args.max_epochs,
        accumulate_grad_batches=args.accumulate,
        gradient_clip_val=1.0,
        logger=CSVLogger("logs"),
        callbacks=[
            ModelCheckpoint(monitor="overlap", mode="max", save_last=True),
            LearningRateMonitor(),
        ],
    )
    model = UNet(batch_size=args.batch_size, workers=args.workers)
    trainer.fit(model)
    print(trainer.validate(model, ckpt_path="best"))


if __name__ == "__main__":
    main()
