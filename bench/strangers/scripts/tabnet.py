"""pytorch-tabnet: TabNetClassifier.fit, which makes its loaders and its loop itself."""

import argparse

import numpy as np
from pytorch_tabnet.tab_model import TabNetClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=256)
args = parser.parse_args()

draw = np.random.default_rng(0)
x = draw.normal(size=(4000, 40)).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 0).astype(int)
model = TabNetClassifier(n_d=32, n_a=32, device_name="cuda")
model.fit(
    x[:3200],
    y[:3200],
    eval_set=[(x[3200:], y[3200:])],
    max_epochs=5,
    batch_size=args.batch_size,
    virtual_batch_size=min(128, args.batch_size),
)
