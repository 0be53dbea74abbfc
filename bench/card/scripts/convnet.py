"""Image classification: a residual network of plain blocks, or of depthwise separable ones.

After He et al., arXiv 1512.03385, and Sandler et al., arXiv 1801.04381.
"""

import options
import torch
from torch import nn
from torch.nn import functional as F


class Plain(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        same = inside == outside and stride == 1
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )
        )

    def forward(self, x):
        return F.relu(self.body(x) + self.skip(x))


class Separable(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        wide = 4 * inside
        self.same = inside == outside and stride == 1
        self.body = nn.Sequential(
            nn.Conv2d(inside, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(inplace=True),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(inplace=True),
            nn.Conv2d(wide, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )

    def forward(self, x):
        return x + self.body(x) if self.same else self.body(x)


def network(block, width, depth, classes):
    stem = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    blocks, inside = [], width
    for stage in range(4):
        for number in range(depth):
            outside = width << stage
            blocks.append(block(inside, outside, 2 if stage and not number else 1))
            inside = outside
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes)
    )


def main():
    parser = options.parser(__doc__, optimizer="sgd")
    parser.add_argument("--block", choices=["plain", "separable"], default="plain")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--benchmark", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = args.benchmark
    form = torch.channels_last if args.channels_last else torch.contiguous_format
    block = {"plain": Plain, "separable": Separable}[args.block]
    model = network(block, args.width, args.depth, 1000).cuda().to(memory_format=form)
    optimizer = options.OPTIMIZERS[args.optimizer](model.parameters())
    scaler = options.scaler(args.amp)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    labels = torch.randint(0, 1000, (args.batch_size,))
    for _ in range(args.steps):
        x, y = images.cuda(non_blocking=True).to(memory_format=form), labels.cuda(non_blocking=True)
        with options.autocast(args.amp):
            loss = F.cross_entropy(model(x), y)
        options.update(loss, optimizer, scaler)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
