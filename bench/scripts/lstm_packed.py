"""Classify sequences of different lengths with a bidirectional LSTM: packed sequences, lengths
sorted on the host.
"""

import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm


class Sequences(Dataset):
    """Random walks of 20 to 120 steps in 16 dimensions; the label says which went furthest."""

    def __init__(self, count, seed):
        source = torch.Generator().manual_seed(seed)
        lengths = torch.randint(20, 121, (count,), generator=source)
        self.walks = [torch.randn(int(n), 16, generator=source).cumsum(0) for n in lengths]

    def __len__(self):
        return len(self.walks)

    def __getitem__(self, index):
        walk = self.walks[index]
        return walk, int(walk[-1].abs().argmax())


def collate(samples):
    samples = sorted(samples, key=lambda sample: len(sample[0]), reverse=True)
    walks = [walk for walk, _ in samples]
    lengths = torch.tensor([len(walk) for walk in walks])
    return (
        pad_sequence(walks, batch_first=True),
        lengths,
        torch.tensor([label for _, label in samples]),
    )


class Classifier(nn.Module):
    def __init__(self, hidden=256, layers=2):
        super().__init__()
        self.rnn = nn.LSTM(16, hidden, layers, batch_first=True, bidirectional=True, dropout=0.1)
        self.attention = nn.Linear(2 * hidden, 1)
        self.head = nn.Linear(2 * hidden, 16)

    def forward(self, walks, lengths):
        packed, _ = self.rnn(pack_padded_sequence(walks, lengths, batch_first=True))
        states, _ = pad_packed_sequence(packed, batch_first=True)
        steps = torch.arange(states.size(1), device=states.device)
        scores = self.attention(states).squeeze(-1)
        scores = scores.masked_fill(steps >= lengths.to(states.device).unsqueeze(1), float("-inf"))
        return self.head((scores.softmax(1).unsqueeze(-1) * states).sum(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(0)
    train_loader = DataLoader(
        Sequences(4096, 1),
        args.batch_size,
        shuffle=True,
        collate_fn=collate,
        num_workers=args.workers,
        drop_last=True,
    )
    valid_loader = DataLoader(Sequences(512, 2), args.batch_size, collate_fn=collate)
    model = Classifier().cuda()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        model.train()
        losses = []
        for walks, lengths, labels in tqdm(train_loader):
            loss = criterion(model(walks.cuda(), lengths), labels.cuda())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        right = 0
        with torch.no_grad():
            for walks, lengths, labels in valid_loader:
                right += (model(walks.cuda(), lengths).argmax(1).cpu() == labels).sum().item()
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}, accuracy {right / 512:.2%}")


if __name__ == "__main__":
    main()
