"""A U-Net on square crops: of one size in a batch, drawn for each batch."""

import torch
from shared import flags, loader_of, train
from torch import nn
from torch.nn import functional as F

CLASSES = 4
SIZES = (96, 128, 160, 192, 224, 256)


def scan(number):
    return torch.full((1, 256, 256), number % 7 / 7), torch.full((256, 256), number % CLASSES)


def cropped(samples):
    size = SIZES[torch.randint(len(SIZES), ()).item()]
    top, left = torch.randint(256 - size + 1, (2,)).tolist()
    scans, masks = map(torch.stack, zip(*samples, strict=True))
    rows, columns = slice(top, top + size), slice(left, left + size)
    return scans[..., rows, columns].contiguous(), masks[..., rows, columns].contiguous()


def double(channels, out):
    layers = []
    for width in (channels, out):
        layers += [nn.Conv2d(width, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, widths=(16, 32, 64, 128)):
        super().__init__()
        self.down = nn.ModuleList(map(double, (1, *widths), widths))
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, 2) for width in widths[-2::-1]
        )
        self.up = nn.ModuleList(double(2 * width, width) for width in widths[-2::-1])
        self.head = nn.Conv2d(widths[0], CLASSES, 1)

    def forward(self, scans):
        levels = [self.down[0](scans)]
        for block in self.down[1:]:
            levels.append(block(F.max_pool2d(levels[-1], 2)))
        states = levels.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            states = block(torch.cat([levels.pop(), grow(states)], 1))
        return self.head(states)


def loss_of(model, scans, masks):
    return F.cross_entropy(model(scans.cuda()), masks.cuda())


args = flags(2000)
model = UNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train(model, optimizer, loader_of(args, scan, [], cropped), loss_of)
