"""Text classification: torch.nn's own transformer encoder with padding masks and dropout (Vaswani
et al., arXiv 1706.03762).
"""

import options
import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(30000, args.width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            args.width, args.heads, 4 * args.width, dropout=0.1, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False)
        self.head = nn.Linear(args.width, 2)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens), src_key_padding_mask=tokens == 0)[:, 0])


def main():
    parser = options.parser(__doc__)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Classifier(args).cuda()
    optimizer = options.OPTIMIZERS[args.optimizer](model.parameters())
    scaler = options.scaler(args.amp)
    tokens = torch.randint(1, 30000, (args.batch_size, args.length))
    tokens[:, -args.length // 4 :] = 0
    labels = torch.randint(0, 2, (args.batch_size,))
    for _ in range(args.steps):
        with options.autocast(args.amp):
            loss = F.cross_entropy(
                model(tokens.cuda(non_blocking=True)), labels.cuda(non_blocking=True)
            )
        options.update(loss, optimizer, scaler)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
