"""segmentation_models_pytorch: U-Net with a ResNet encoder, Dice loss, its measures."""

import argparse

import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()


class Shapes(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        image = torch.randn(3, 128, 128, generator=torch.Generator().manual_seed(index))
        return image, (image.mean(0, keepdim=True) > 0).float()


model = smp.Unet("resnet18", encoder_weights=None, in_channels=3, classes=1).cuda()
loss_fn = smp.losses.DiceLoss(smp.losses.BINARY_MODE, from_logits=True)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
train_loader = DataLoader(Shapes(200), batch_size=args.batch_size, shuffle=True)
valid_loader = DataLoader(Shapes(40), batch_size=args.batch_size)
for epoch in range(3):
    model.train()
    for image, mask in train_loader:
        loss = loss_fn(model(image.cuda()), mask.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        stats = [
            smp.metrics.get_stats(
                (model(i.cuda()).sigmoid() > 0.5).long(), m.cuda().long(), mode="binary"
            )
            for i, m in valid_loader
        ]
    print(
        epoch, smp.metrics.iou_score(*[torch.cat(part) for part in zip(*stats)], reduction="micro")
    )
