"""Language modelling with a recurrent network, in the form of PyTorch's word_language_model example."""

import options
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.embed = nn.Embedding(20000, args.width)
        self.recur = nn.LSTM(args.width, args.width, args.layers, dropout=0.2)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(args.width, 20000)

    def forward(self, tokens):
        return self.head(self.drop(self.recur(self.drop(self.embed(tokens)))[0]))


def main():
    parser = options.parser(__doc__, optimizer="sgd")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=650)
    parser.add_argument("--length", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Model(args).cuda()
    optimizer = options.OPTIMIZERS[args.optimizer](model.parameters())
    scaler = options.scaler(args.amp)
    tokens = torch.randint(0, 20000, (args.length + 1, args.batch_size))
    for _ in range(args.steps):
        batch = tokens.cuda(non_blocking=True)
        with options.autocast(args.amp):
            loss = F.cross_entropy(model(batch[:-1]).flatten(0, 1), batch[1:].flatten())
        options.update(loss, optimizer, scaler)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
