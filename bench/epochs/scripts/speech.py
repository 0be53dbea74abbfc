"""Speech recognition on one to six seconds of sound: convolutions on the waveform, a transformer on
what they find, the CTC loss.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

RATE, LETTERS = 16000, 32
CONVOLUTIONS = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))  # kernels, strides


class Utterances(Dataset):
    def __init__(self, count):
        source = torch.Generator().manual_seed(1)
        self.lengths = torch.randint(RATE, 6 * RATE, (count,), generator=source).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        source = torch.Generator().manual_seed(index)
        length = self.lengths[index]
        text = torch.randint(1, LETTERS, (8 * length // RATE,), generator=source)
        return torch.rand(length, generator=source), text


def collate(samples):
    waves, texts = map(list, zip(*samples, strict=True))
    lengths, of_texts = (torch.tensor([len(part) for part in parts]) for parts in (waves, texts))
    return pad_sequence(waves, batch_first=True), lengths, torch.cat(texts), of_texts


class Recognizer(nn.Module):
    def __init__(self, width=128, states=256, layers=4):
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width if number else 1, width, kernel, stride, bias=False)
            for number, (kernel, stride) in enumerate(CONVOLUTIONS)
        )
        self.norm = nn.GroupNorm(width, width)
        self.project = nn.Linear(width, states)
        layer = nn.TransformerEncoderLayer(states, 4, 4 * states, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(states, LETTERS)

    def forward(self, waves, lengths):
        features = waves[:, None]
        for number, convolution in enumerate(self.convolutions):
            features = convolution(features)
            features = F.gelu(features if number else self.norm(features))
        for kernel, stride in CONVOLUTIONS:
            lengths = (lengths - kernel) // stride + 1
        states = self.project(features.transpose(1, 2))
        is_padding = torch.arange(states.size(1)) >= lengths[:, None]
        states = self.encoder(states, src_key_padding_mask=is_padding.to(states.device))
        return self.head(states).log_softmax(-1).transpose(0, 1), lengths


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(
        Utterances(args.samples), args.batch_size, shuffle=True, collate_fn=collate, drop_last=True
    )
    model = Recognizer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for waves, lengths, texts, of_texts in loader:
        scores, of_scores = model(waves.cuda(), lengths)
        loss = F.ctc_loss(scores, texts.cuda(), of_scores, of_texts, zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
