"""Contrastive learning: two views of each sample through a perceptron, every pair of the batch
compared.

The loss is NT-Xent of Chen et al., arXiv 2002.05709: its memory grows with the square of the batch.
"""

import options
import torch
from torch import nn
from torch.nn import functional as F


def main():
    parser = options.parser(__doc__)
    parser.add_argument("--width", type=int, default=2048)
    args = parser.parse_args()

    torch.manual_seed(0)
    layers = [
        nn.Linear(512, args.width),
        nn.BatchNorm1d(args.width),
        nn.GELU(),
        nn.Linear(args.width, 128),
    ]
    model = nn.Sequential(*layers).cuda()
    optimizer = options.OPTIMIZERS[args.optimizer](model.parameters())
    scaler = options.scaler(args.amp)
    samples = torch.randn(args.batch_size, 512)
    for _ in range(args.steps):
        x = samples.cuda(non_blocking=True)
        views = torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])
        with options.autocast(args.amp):
            z = F.normalize(model(views), dim=1)
            likeness = z @ z.T / 0.2
        itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
        partner = torch.arange(len(z), device=z.device).roll(len(x))
        loss = F.cross_entropy(likeness.masked_fill(itself, -1e4), partner)
        options.update(loss, optimizer, scaler)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
