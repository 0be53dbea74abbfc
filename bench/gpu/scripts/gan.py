"""Two networks and two optimizers that step by turns: DCGAN (Radford et al., arXiv 1511.06434) on
random images.
"""

import options
import torch
from torch import nn
from torch.nn import functional as F


def generator(width):
    sizes = [
        (128, 8 * width, 1, 0),
        (8 * width, 4 * width, 2, 1),
        (4 * width, 2 * width, 2, 1),
        (2 * width, width, 2, 1),
    ]
    layers = []
    for inside, outside, stride, padding in sizes:
        layers += [
            nn.ConvTranspose2d(inside, outside, 4, stride, padding, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(True),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())


def discriminator(width):
    layers, inside = [], 3
    for outside in (width, 2 * width, 4 * width, 8 * width):
        layers += [
            nn.Conv2d(inside, outside, 4, 2, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.LeakyReLU(0.2, True),
        ]
        inside = outside
    return nn.Sequential(*layers, nn.Conv2d(inside, 1, 4, 1, 0, bias=False), nn.Flatten())


def main():
    parser = options.parser(__doc__)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    makes, judges = generator(args.width).cuda(), discriminator(args.width).cuda()
    makers, judgers = (
        options.OPTIMIZERS[args.optimizer](net.parameters()) for net in (makes, judges)
    )
    images = torch.rand(args.batch_size, 3, 64, 64) * 2 - 1
    for _ in range(args.steps):
        real = images.cuda(non_blocking=True)
        noise = torch.randn(args.batch_size, 128, 1, 1, device="cuda")
        with options.autocast(args.amp):
            fake = makes(noise)
            seen = judges(real), judges(fake.detach())
        judgers.zero_grad()
        loss = sum(
            F.binary_cross_entropy_with_logits(
                given.float(), torch.full_like(given, wanted, dtype=torch.float32)
            )
            for given, wanted in zip(seen, (1.0, 0.0), strict=True)
        )
        loss.backward()
        judgers.step()
        makers.zero_grad()
        with options.autocast(args.amp):
            given = judges(fake).float()
        F.binary_cross_entropy_with_logits(given, torch.ones_like(given)).backward()
        makers.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
