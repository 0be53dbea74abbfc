"""skorch: NeuralNetClassifier.fit, scikit-learn's way to train."""

import argparse

import numpy as np
import torch
from skorch import NeuralNetClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=128)
args = parser.parse_args()


class Net(torch.nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(20, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.5),
            torch.nn.Linear(width, width),
            torch.nn.ReLU(),
            torch.nn.Linear(width, 2),
            torch.nn.Softmax(dim=-1),
        )

    def forward(self, x):
        return self.layers(x)


draw = np.random.default_rng(0)
x = draw.normal(size=(4000, 20)).astype(np.float32)
y = (x.sum(axis=1) > 0).astype(np.int64)
net = NeuralNetClassifier(
    Net,
    max_epochs=3,
    lr=0.1,
    batch_size=args.batch_size,
    device="cuda",
    iterator_train__shuffle=True,
)
net.fit(x, y)
