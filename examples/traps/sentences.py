"""Sentences of 5 to 500 tokens, padded batch by batch: what a batch needs depends on its longest
sentence.
"""

import argparse

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

VOCABULARY, SHORTEST, LONGEST = 1000, 5, 500


class Sentences(Dataset):
    """Mostly short ones. Exactly one sentence in 200 has the full length."""

    def __init__(self, count):
        lengths = torch.randint(SHORTEST, 100, (count,)).tolist()
        lengths[0], lengths[1::200] = SHORTEST, [LONGEST] * len(lengths[1::200])
        self.sentences = [torch.randint(1, VOCABULARY, (length,)) for length in lengths]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return self.sentences[index], torch.tensor(float(len(self.sentences[index]) % 2))


def pad(samples):
    sentences, labels = zip(*samples, strict=True)
    return pad_sequence(list(sentences), batch_first=True), torch.stack(labels)


class Classifier(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.block = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True
        )
        self.out = nn.Linear(width, 1)

    def forward(self, tokens):  # (batch, longest) -> (batch,)
        padding = tokens == 0
        hidden = self.block(self.embedding(tokens), src_key_padding_mask=padding)
        return self.out(hidden.masked_fill(padding.unsqueeze(-1), 0.0).mean(1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Sentences(400), batch_size=args.batch_size, shuffle=True, collate_fn=pad)
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for tokens, labels in loader:
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(tokens.to(device)), labels.to(device)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
