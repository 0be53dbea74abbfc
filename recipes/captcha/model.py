"""The network that reads: seven convolution blocks with three poolings, then two linear layers."""

import torch
from torch import nn


def block(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
    )


class Reader(nn.Module):
    """Reads `length` characters out of an alphabet of `classes`; at 4 of 36 and 60 × 160,
    19,072,400 parameters.

    The head reads the features of the whole image at once: its first layer holds nine tenths of the
    parameters.
    """

    def __init__(
        self,
        classes: int = 36,
        length: int = 4,
        height: int = 60,
        width: int = 160,
        dropout: float = 0.25,
    ) -> None:
        super().__init__()
        self.classes, self.length = classes, length
        self.features = nn.Sequential(
            *(block(1, 32), nn.MaxPool2d(2)),
            *(block(32, 64), block(64, 64), nn.MaxPool2d(2)),
            *(block(64, 128), block(128, 128), nn.MaxPool2d(2)),
            *(block(128, 128), block(128, 128)),
        )
        self.head = nn.Sequential(
            nn.Flatten(),
            nn.Linear(128 * (height // 8) * (width // 8), 1024),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(1024, length * classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, 1, height, width) floats in [-1, 1] -> (batch, length, classes) logits."""
        return self.head(self.features(images)).view(-1, self.length, self.classes)
