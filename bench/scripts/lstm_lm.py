"""A language model with nn.LSTM in the style of PyTorch's word_language_model: the state is carried
from batch to batch.
"""

import argparse
import math

import torch
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, words, width, hidden, layers, dropout, tied):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, hidden, layers, dropout=dropout)
        self.decoder = nn.Linear(hidden, words)
        if tied:
            self.decoder.weight = self.encoder.weight
        self.layers, self.hidden, self.words = layers, hidden, words

    def forward(self, tokens, state):
        output, state = self.rnn(self.drop(self.encoder(tokens)), state)
        return self.decoder(self.drop(output)).view(-1, self.words), state

    def init_hidden(self, batch_size):
        weight = next(self.parameters())
        shape = (self.layers, batch_size, self.hidden)
        return weight.new_zeros(shape), weight.new_zeros(shape)


def batchify(tokens, batch_size, device):
    """(steps, batch_size): columns that go on from one batch to the next."""
    steps = tokens.size(0) // batch_size
    return tokens.narrow(0, 0, steps * batch_size).view(batch_size, -1).t().contiguous().to(device)


def get_batch(source, start, bptt):
    length = min(bptt, len(source) - 1 - start)
    return source[start : start + length], source[start + 1 : start + 1 + length].view(-1)


def detached(state):
    return tuple(part.detach() for part in state)


def evaluate(model, data, batch_size, bptt, criterion):
    model.eval()
    total, state = 0.0, model.init_hidden(batch_size)
    with torch.no_grad():
        for start in range(0, data.size(0) - 1, bptt):
            tokens, targets = get_batch(data, start, bptt)
            output, state = model(tokens, state)
            total += len(tokens) * criterion(output, targets).item()
    return total / (len(data) - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--bptt", type=int, default=35)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--width", type=int, default=400)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--words", type=int, default=10000)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--lr", type=float, default=20.0)
    args = parser.parse_args()

    torch.manual_seed(1111)
    device = torch.device("cuda")
    text = torch.randint(0, args.words, (args.tokens + 20_000,))
    train_data = batchify(text[: args.tokens], args.batch_size, device)
    valid_data = batchify(text[args.tokens :], 10, device)
    model = RNNModel(args.words, args.width, args.width, args.layers, 0.2, tied=True).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        state = model.init_hidden(args.batch_size)
        for number, start in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
            tokens, targets = get_batch(train_data, start, args.bptt)
            state = detached(state)
            optimizer.zero_grad()
            output, state = model(tokens, state)
            loss = criterion(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            if number % 50 == 0:
                print(
                    f"epoch {epoch} batch {number}: loss {loss.item():.2f}, perplexity "
                    f"{math.exp(min(loss.item(), 20)):.1f}"
                )
        print(
            f"epoch {epoch}: valid loss {evaluate(model, valid_data, 10, args.bptt, criterion):.2f}"
        )
        with open("model.pt", "wb") as file:
            torch.save(model, file)


if __name__ == "__main__":
    main()
