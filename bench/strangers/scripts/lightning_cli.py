"""LightningCLI: model and data module are classes, all else comes from the command line."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(LightningDataModule):
    def __init__(self, batch_size: int = 64):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        data = TensorDataset(torch.randn(1200, 1, 28, 28), torch.randint(0, 10, (1200,)))
        self.train_part, self.val_part = random_split(data, [1000, 200])

    def train_dataloader(self):
        return DataLoader(self.train_part, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_part, batch_size=self.batch_size)


class Classifier(LightningModule):
    def __init__(self, width: int = 64, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(1, width, 3),
            torch.nn.ReLU(),
            torch.nn.Conv2d(width, width, 3),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(4),
            torch.nn.Flatten(),
            torch.nn.Linear(16 * width, 10),
        )

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


LightningCLI(Classifier, Digits)
