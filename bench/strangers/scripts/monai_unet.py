"""MONAI: segmentation of volumes with its transforms, cache, loader, U-Net, Dice loss and sliding
windows.
"""

import argparse

import numpy as np
import torch
from monai.data import CacheDataset, DataLoader
from monai.inferers import sliding_window_inference
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    EnsureTyped,
    RandFlipd,
    RandSpatialCropd,
    ScaleIntensityd,
)

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
args = parser.parse_args()

draw = np.random.default_rng(0)
volumes = [
    {"image": draw.random((64, 64, 64), np.float32), "label": draw.integers(0, 2, (64, 64, 64))}
    for _ in range(24)
]
both = ["image", "label"]
always = [
    EnsureChannelFirstd(both, channel_dim="no_channel"),
    ScaleIntensityd("image"),
    EnsureTyped(both),
]
often = [RandSpatialCropd(both, (48, 48, 48), random_size=False), RandFlipd(both, prob=0.5)]
train_loader = DataLoader(
    CacheDataset(volumes[:20], Compose(always + often)), batch_size=args.batch_size, shuffle=True
)
val_loader = DataLoader(CacheDataset(volumes[20:], Compose(always)), batch_size=1)

device = torch.device("cuda")
model = UNet(3, 1, 2, channels=(16, 32, 64, 128), strides=(2, 2, 2), num_res_units=2).to(device)
loss_function = DiceCELoss(to_onehot_y=True, softmax=True)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
for epoch in range(3):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        loss = loss_function(model(batch["image"].to(device)), batch["label"].to(device))
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for batch in val_loader:
            sliding_window_inference(batch["image"].to(device), (48, 48, 48), 4, model)
    print(epoch, loss.item())
